// Transport over UCX: the peers on this machine whose end only the kernel tells. Shared memory has
// no end of its own: UCX looks whether the process is still there, every 20 s, and takes a zombie
// for a living one. So the kernel is asked for a descriptor of the process, which becomes readable
// at its end. It knows no endpoint.
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

  /// Watches the process behind `peer`, where it can be: another process that this one sees in its
  /// own process namespace, on a kernel that can (5.3), and once. False: it has ended already.
  [[nodiscard]] bool watch(PeerId peer, const PeerInfo& process);
  /// Idempotent.
  void forget(PeerId peer);

  /// To be polled: readable when a watched process has ended. -1 where there is none.
  [[nodiscard]] int descriptor() const { return all_; }
  /// Those that have ended since; they are watched no longer.
  [[nodiscard]] std::vector<PeerId> take_ended();

 private:
  [[nodiscard]] bool visible(const PeerInfo& process) const;

  const PeerInfo& self_;
  int all_ = -1;  ///< epoll's
  std::unordered_map<PeerId, int> watched_;
};

}  // namespace gtopk::transport
