// Transport over UCX: detects the death of peers on this machine through the kernel. Shared memory
// itself does not signal it: UCX checks every 20 s whether the process still exists, and counts a
// zombie as alive. So this module opens a pidfd of the process, which becomes readable when the
// process ends. It does not know endpoints.
#pragma once

#include <unordered_map>
#include <vector>

#include "src/transport/base/request.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::transport {

class Neighbours {
 public:
  explicit Neighbours(const PeerInfo& self) : self_(self) {}
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;
  Neighbours(Neighbours&&) = delete;
  Neighbours& operator=(Neighbours&&) = delete;
  ~Neighbours();

  /// Watches the peer's process if possible: another process, visible in this one's process
  /// namespace, on Linux 5.3 or newer. Idempotent. Returns false if it has already ended.
  [[nodiscard]] bool watch(PeerId peer, const PeerInfo& process);
  /// Stops watching the peer's process. Idempotent.
  void forget(PeerId peer);
  /// Whether a process, watched or not, has ended, as far as this process can see.
  [[nodiscard]] bool has_ended(const PeerInfo& process) const;

  /// A descriptor for polling, which is readable when a watched process has ended; -1 if none is
  /// watched.
  [[nodiscard]] int descriptor() const { return all_; }
  /// Returns peers whose processes have ended, and stops watching them.
  [[nodiscard]] std::vector<PeerId> take_ended();

 private:
  [[nodiscard]] bool visible(const PeerInfo& process) const;

  const PeerInfo& self_;
  int all_ = -1;  ///< the epoll descriptor
  std::unordered_map<PeerId, int> watched_;
};

}  // namespace gtopk::transport
