// Communicator: what processes publish about themselves in a directory: first their address, and at
// the end that they have left.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "gtopk/directory.hpp"
#include "src/engine/lookup.hpp"

namespace gtopk {

/// Thread-safe.
class PeerDirectory {
 public:
  explicit PeerDirectory(std::shared_ptr<Directory> directory) : directory_(std::move(directory)) {}

  /// Directories of the same place share what is published.
  [[nodiscard]] const void* place() const { return directory_->place(); }

  // `identity`: a process's. It is never reused, so entries of earlier runs match no process.

  /// Throws Error{kBootstrap}.
  void publish(std::uint64_t identity, const std::string& address);
  /// Throws Error{kBootstrap} after 30 s, or if the directory fails or a stop is requested.
  [[nodiscard]] engine::PeerRecord find(std::uint64_t identity, const std::stop_token& stop);
  /// Replaces the address. Does nothing if the directory's last lookup failed. may_be_gone: whether
  /// a process that served the directory may have left, so that it is not asked to confirm.
  void publish_departure(std::uint64_t identity, const std::string& last_words, bool may_be_gone);

 private:
  std::shared_ptr<Directory> directory_;
  std::atomic<bool> fails_{false};
};

}  // namespace gtopk
