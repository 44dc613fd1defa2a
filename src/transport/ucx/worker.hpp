// Transport over UCX: one worker, its progress and its sleep. It does not know peers.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/ucx/context.hpp"
#include "src/transport/ucx/own_sockets.hpp"

namespace gtopk::transport {

class UcxWorker {
 public:
  UcxWorker(const UcxContext& context, const UcxConfig& config);
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;
  UcxWorker(UcxWorker&&) = delete;
  UcxWorker& operator=(UcxWorker&&) = delete;
  ~UcxWorker();

  [[nodiscard]] ucp_worker_h get() const { return worker_.get(); }
  /// The address by which another process reaches this worker.
  [[nodiscard]] std::string address() const;

  /// The addresses at which it accepts TCP connections; empty after close().
  [[nodiscard]] std::vector<TcpAddress> tcp_addresses() const {
    return sockets_ ? sockets_->addresses() : std::vector<TcpAddress>();
  }

  /// Returns true if something moved. Like sleep(), it may be called after close(), and then does
  /// nothing.
  bool progress();
  /// After a progress() that found nothing: sleeps until something may have moved, wake() was
  /// called, or `at_most` (never more than 50 ms) has passed. `also` is a descriptor or -1; if it
  /// becomes readable, the sleep ends too and returns true.
  [[nodiscard]] bool sleep(Duration at_most, int also);
  /// Sleeps until wake() is called or `at_most` has passed, whatever arrives.
  void rest(Duration at_most);
  /// Ends a sleep or rest. Thread-safe for as long as this object lives.
  void wake();

  /// Whether UCX has closed a port on which others connect to this worker. It is noticed in
  /// sleep(), within a second.
  [[nodiscard]] bool has_lost_listener() const { return sockets_ && sockets_->has_lost_listener(); }
  /// Called when a process that wrote to this worker's shared memory has been killed: its last
  /// message may be half-written for good, and hides all that follow.
  void doubt_queue() { in_doubt_ = true; }
  /// Whether the queue may end at such a message: since doubt_queue(), UCX has always had something
  /// left to read before a sleep.
  [[nodiscard]] bool doubts_queue() const { return in_doubt_; }
  /// How long UCX has had something left to do but has done nothing.
  [[nodiscard]] Duration stuck_for() const {
    return stuck_ ? std::chrono::steady_clock::now() - stuck_since_ : Duration::zero();
  }
  /// The shortest round trip seen on a connection to one of these hosts; nullopt if there is none.
  [[nodiscard]] std::optional<Duration> round_trip(const std::vector<TcpAddress>& hosts) const {
    return sockets_ ? sockets_->round_trip(hosts) : std::nullopt;
  }
  /// Must be called when a connection is being made.
  void expect_connection();

  /// Destroys the worker; wake() then does nothing.
  void close();
  /// Leaks the worker without touching UCX, for a process forked from the one that made it.
  void abandon() { static_cast<void>(worker_.release()); }

 private:
  struct Destroy {
    void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
  };

  void wait_for_space();
  /// Must be called before a sleep. Returns false if wake() was called, so that there must be no
  /// sleep.
  [[nodiscard]] bool may_sleep();
  void forget_wake();

  int wake_descriptor_ = -1;
  int event_descriptor_ = -1;  ///< UCX's own descriptor
  std::atomic<bool> woken_{false};
  /// wake() makes a system call only if this is set.
  std::atomic<bool> asleep_{false};
  /// Whether UCX could not be armed, and nothing has moved since.
  bool stuck_ = false;
  TimePoint stuck_since_;
  bool in_doubt_ = false;
  std::unique_ptr<ucp_worker, Destroy> worker_;
  std::optional<OwnSockets> sockets_;  ///< destroyed before the worker closes them
};

}  // namespace gtopk::transport
