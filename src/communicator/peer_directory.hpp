// Communicator: publishes data about processes in a directory: first their address, and at the end
// that they have left.
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

  /// Directories with the same place share published values.
  [[nodiscard]] const void* place() const { return directory_->place(); }

  // `identity` identifies a process. It is never reused, so entries of earlier runs match no
  // process.

  /// Publishes this process's address. Throws Error{kBootstrap}.
  void publish(std::uint64_t identity, const std::string& address);
  /// Finds a process's record. Throws Error{kBootstrap} after 30 s, or if the directory fails or a
  /// stop is requested.
  [[nodiscard]] engine::PeerRecord find(std::uint64_t identity, const std::stop_token& stop);
  /// Replaces the address. Does nothing if the directory's last lookup failed. `may_be_gone`:
  /// whether the process that serves the directory may have left; then the directory is not asked
  /// to confirm.
  void publish_departure(std::uint64_t identity, const std::string& last_words, bool may_be_gone);

 private:
  std::shared_ptr<Directory> directory_;
  std::atomic<bool> fails_{false};
};

}  // namespace gtopk
