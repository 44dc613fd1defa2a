// Transport over UCX: keeps UCX's sockets from this process's children. A child that held one would
// keep the connection open when its parent has ended, and the peers would not see the end of it.
// UCX opens them without close-on-exec and names none, so they are found where it polls them.
//
// A forked child closes them before fork() returns in it; it cannot use UCX anyway. A program that
// this process starts otherwise (posix_spawn, vfork) gets none that is marked close-on-exec, which
// happens within a millisecond of a connection made here, and within a second of one accepted.
#pragma once

#include <sys/types.h>

#include <string_view>
#include <vector>

#include "src/transport/base/clock.hpp"

namespace gtopk::transport {

/// Inode numbers of the TCP sockets of this process that listen.
[[nodiscard]] std::vector<ino_t> listening_sockets();

class OwnSockets {
 public:
  /// Those that worker polls through `event_descriptor`, and the listeners that `before` its making
  /// did not have and that its `address` names. A child forked while this exists closes them.
  OwnSockets(int event_descriptor, const std::vector<ino_t>& before, std::string_view address);
  OwnSockets(const OwnSockets&) = delete;
  OwnSockets& operator=(const OwnSockets&) = delete;
  OwnSockets(OwnSockets&&) = delete;
  OwnSockets& operator=(OwnSockets&&) = delete;
  ~OwnSockets();

  /// A connection is being made: look soon, and again until it must be there.
  void expect_another() { pause_ = {}; }
  /// Marks close-on-exec what there is, when it is time to look. Not for the path of each message.
  void mark(TimePoint now);
  /// Called in a forked child: neither allocates nor locks.
  void close_all() const;

 private:
  struct Listener {
    int descriptor;
    ino_t inode;
  };

  int event_descriptor_;
  std::vector<Listener> listeners_;
  Duration pause_{};
  TimePoint next_look_{};
};

}  // namespace gtopk::transport
