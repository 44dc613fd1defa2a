// Transport over UCX: distinguishes a process from its forked copies without a system call, because
// every message checks this. It uses a byte in memory that the kernel fills with zeros in a forked
// child.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace gtopk::transport {

class ForkMark {
 public:
  ForkMark();
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;
  ForkMark(ForkMark&&) = delete;
  ForkMark& operator=(ForkMark&&) = delete;
  ~ForkMark();

  /// Whether the calling process made this object, and is not a fork of the process that did.
  [[nodiscard]] bool made_here() const;

 private:
  pid_t made_by_;
  /// Null if the kernel has no such memory (Linux before 4.14); then the pid is compared.
  void* page_ = nullptr;
  std::size_t bytes_;
};

}  // namespace gtopk::transport
