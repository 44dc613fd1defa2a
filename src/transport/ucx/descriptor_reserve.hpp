// Transport over UCX: file descriptors held back for the notices of a process that has run out of
// them.
#pragma once

#include <vector>

namespace gtopk::transport {

class DescriptorReserve {
 public:
  /// The size of the reserve, enough for two or three connections. The peers that hear of a failure
  /// pass it on.
  static constexpr unsigned kSize = 16;

  DescriptorReserve() { fill(); }
  DescriptorReserve(const DescriptorReserve&) = delete;
  DescriptorReserve& operator=(const DescriptorReserve&) = delete;
  DescriptorReserve(DescriptorReserve&&) = delete;
  DescriptorReserve& operator=(DescriptorReserve&&) = delete;
  ~DescriptorReserve() { release(); }

  [[nodiscard]] bool is_full() const { return held_.size() == kSize; }
  /// Opens the missing descriptors, as far as possible.
  void fill();
  /// Releases all descriptors, so that the next opens can use them.
  void release();

 private:
  std::vector<int> held_;
};

}  // namespace gtopk::transport
