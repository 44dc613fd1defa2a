// Transport over UCX: makes UCX's sockets send keepalives, and keeps this process's children from
// inheriting them. A child that held one would keep the connection open after its parent's death,
// and the peers would not notice. UCX opens sockets without close-on-exec and does not expose them,
// so they are found through its epoll set. The kernel's data about them can be read, too.
//
// A forked child closes them before fork() returns in it; it cannot use UCX anyway. A program that
// this process starts in another way (posix_spawn, vfork) inherits no socket that is marked
// close-on-exec. Sockets are marked within a millisecond if this process made the connection, and
// within a second if it accepted it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/base/keepalive.hpp"
#include "src/transport/ucx/tcp_address.hpp"

namespace gtopk::transport {

/// Returns the inode numbers of this process's listening TCP sockets.
[[nodiscard]] std::vector<ino_t> listening_sockets();

class OwnSockets {
 public:
  /// Covers the sockets that a worker polls through `event_descriptor`, and the listeners that its
  /// `address` names and that did not exist `before` it was made. A child that is forked while this
  /// object exists closes them. UCX requests keepalives for the connections that it makes, but not
  /// for those that it accepts: these inherit `keepalive` from the listeners.
  OwnSockets(int event_descriptor, const std::vector<ino_t>& before, std::string_view address,
             const std::optional<Keepalive>& keepalive);
  OwnSockets(const OwnSockets&) = delete;
  OwnSockets& operator=(const OwnSockets&) = delete;
  OwnSockets(OwnSockets&&) = delete;
  OwnSockets& operator=(OwnSockets&&) = delete;
  ~OwnSockets();

  /// Must be called when a connection is being made. mark() then checks soon, and again until the
  /// connection must exist.
  void expect_another() { pause_ = {}; }
  /// If a check is due, marks the sockets found as close-on-exec. Checks are too slow for every
  /// message.
  void mark(TimePoint now);
  /// The addresses at which UCX accepts connections.
  [[nodiscard]] std::vector<TcpAddress> addresses() const;
  /// The shortest round trip that the kernel has seen on a connection to one of these hosts;
  /// nullopt if it has seen none.
  [[nodiscard]] std::optional<Duration> round_trip(const std::vector<TcpAddress>& hosts) const;
  /// Whether a listener had been closed when mark() last looked.
  [[nodiscard]] bool has_lost_listener() const { return lost_listener_; }
  /// Closes all sockets. It is called in a forked child, so it neither allocates nor locks.
  void close_all() const;

 private:
  struct Listener {
    int descriptor;
    ino_t inode;
    TcpAddress address;
  };

  int event_descriptor_;
  std::vector<Listener> listeners_;
  bool lost_listener_ = false;
  Duration pause_{};
  TimePoint next_look_{};
};

}  // namespace gtopk::transport
