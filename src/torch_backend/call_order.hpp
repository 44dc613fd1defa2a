// Torch backend: one order, the same on every rank, for a group's collectives and those that
// callbacks of its futures call.
//
// Ranks must call collectives in one order, but a callback runs whenever its future completes: on a
// futures thread, or at once on the thread that attaches it, if the future is complete by then. So
// collectives are numbered as if each callback ran when it was attached: first those that the
// callback calls, then those that are called after it was attached. The latter are deferred: they
// start when the callback has returned. Callbacks run in the order of their collectives, one after
// the other. A collective whose callbacks have returned leaves the order, and what they called
// takes its place, so that a chain of callbacks, each of which calls the next collective, is only
// one link deep.
//
// A callback may wait for what comes after it. If it waits for a deferred Work, that starts at
// once. Other waits are invisible: a callback counts as waiting when it calls nothing, nothing that
// it called is in flight, and its thread has slept for a second. Then the next entries may start.
//
// Only collectives whose future was requested are tracked; point-to-point messages never are.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "src/torch_backend/completer.hpp"
#include "src/torch_backend/idle_thread.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

class CallOrder : public std::enable_shared_from_this<CallOrder> {
 public:
  struct Entry;
  using EntryPointer = std::shared_ptr<Entry>;
  using Future = c10::ivalue::Future;
  using Clock = std::chrono::steady_clock;

  /// A collective that is deferred.
  struct Deferred {
    /// Starts it and returns its number. If given an error, ends it with that and returns 0.
    std::function<std::uint64_t(const std::exception_ptr& error)> start;
    /// Limits callbacks with nothing in flight: operations have timeouts of their own.
    std::chrono::milliseconds timeout;
    /// Called after that time: ends the group, and closes the order.
    std::function<void()> late;
  };

  CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;
  CallOrder(CallOrder&&) = delete;
  CallOrder& operator=(CallOrder&&) = delete;
  ~CallOrder();

  /// The collective, of any group, whose callback this thread runs; null if none.
  [[nodiscard]] static const EntryPointer& calling();

  /// While it lives, this thread runs a callback of that collective's future, or what that called.
  class Within {
   public:
    explicit Within(EntryPointer entry);
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;
    Within(Within&&) = delete;
    Within& operator=(Within&&) = delete;
    ~Within();

   private:
    EntryPointer before_;
  };

  /// While it lives, an operation that a callback of that collective called is in flight. Null if
  /// no callback called it.
  class InFlight {
   public:
    explicit InFlight(EntryPointer caller);
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;
    InFlight(InFlight&&) noexcept = default;
    InFlight& operator=(InFlight&&) = delete;
    ~InFlight();

   private:
    EntryPointer caller_;
  };

  /// Whether a collective that this thread calls now has to wait for callbacks. Only loads an
  /// atomic if no future is pending.
  [[nodiscard]] bool has_to_wait();
  /// Call advance() afterwards, without the locks that `start` takes, as its turn may have come.
  [[nodiscard]] EntryPointer defer(Completer& completer, Deferred deferred);
  /// Lets go of what has returned, and starts and runs everything whose turn has come.
  void advance();
  /// Blocks until it is this thread's turn; then the caller starts the collective and calls
  /// started(). Throws c10::DistBackendError at the deadline.
  [[nodiscard]] EntryPointer wait_for_turn(Completer& completer, Clock::time_point deadline);
  /// `number`: the collective's; 0 if it failed to start.
  void started(const EntryPointer& entry, std::uint64_t number);

  /// Tracks a collective whose future has been made; null if the order has been closed.
  [[nodiscard]] EntryPointer track(std::uint64_t number, const EntryPointer& caller,
                                   c10::intrusive_ptr<Future> future);
  /// Counts callbacks of that future as well, except `ours` of the first one's. Returns whether the
  /// collective is tracked; a deferred one no longer is once it has started.
  static bool also_track(const EntryPointer& entry, c10::intrusive_ptr<Future> future,
                         std::size_t ours);
  /// The collective has ended: runs `complete`, which completes its future and thereby runs
  /// callbacks, either now or, if others come first, later on one of the completer's threads.
  /// Exceptions that it throws reach the caller or the completer, and the order continues as if it
  /// had returned.
  void ended(const EntryPointer& entry, Completer& completer, std::function<void()> complete);

  /// Called before a callback waits for the collective.
  void wanted(const EntryPointer& entry);

  /// The group has ended: deferred collectives end with this error, and nothing waits any more.
  void close(const std::exception_ptr& error);
  /// The group starts anew.
  void reopen();

 private:
  using Entries = std::list<EntryPointer>;

  /// What a thread releases without the lock, as that may run Python.
  struct Trash;
  class Lock;
  using Ready = std::vector<std::pair<EntryPointer, std::function<void()>>>;

  // Call with the mutex held.
  [[nodiscard]] EntryPointer caller_of(const EntryPointer& entry) const;
  EntryPointer append(Completer& completer);
  [[nodiscard]] bool waits(const EntryPointer& parent, const Entry* entry) const;
  [[nodiscard]] static bool is_behind(const Entry& entry);
  // apart_from: whose futures' callbacks do not count.
  [[nodiscard]] static bool has_callbacks(const Entry& entry, const Entry* apart_from = nullptr);
  [[nodiscard]] static bool is_pending(const Entry& entry, const Entry* apart_from = nullptr);
  [[nodiscard]] static bool may_leave(const Entry& entry);
  void untrack(Entry& entry);
  /// Lets those leave, of what that one has called, that may.
  void settle(const EntryPointer& parent);
  void find_ready(const EntryPointer& parent, Ready& ready, EntryPointer& next);
  void start_watch(Completer& completer);
  [[nodiscard]] Entries& called_by(const EntryPointer& parent);

  static void run_soon(Ready ready);
  void run(const EntryPointer& entry, const std::function<void()>& complete);
  void has_run(const EntryPointer& entry);

  // The watch runs on a futures thread while something waits.
  void watch();
  [[nodiscard]] static bool any_waits(const Entries& entries);
  struct Seen;
  [[nodiscard]] static bool release_next(const Entries& entries, bool& idle);
  [[nodiscard]] static bool any_in_flight(const Entries& entries);
  [[nodiscard]] static const Deferred* first_late(const Entries& entries, bool in_flight);

  std::mutex mutex_;
  std::condition_variable changed_;
  Entries root_;  ///< called outside callbacks; in call order
  std::atomic<std::size_t> tracked_{0};
  std::unique_ptr<Trash> trash_;
  bool closed_ = false;
  bool watching_ = false;
};

/// A collective. Guarded by the order's mutex unless stated otherwise.
struct CallOrder::Entry {
  struct Tracked {
    c10::intrusive_ptr<Future> future;
    std::size_t ours;  ///< callbacks that are not the user's
  };

  Entry(std::shared_ptr<CallOrder> its_order, const EntryPointer& caller);

  const std::shared_ptr<CallOrder> order;
  /// The entries, of any group, in whose callbacks it was called, innermost first, if they had a
  /// place then. They are weak because each link of a chain would otherwise keep all earlier ones.
  std::vector<std::weak_ptr<Entry>> callers;
  EntryPointer parent;  ///< the innermost one of this group that has a place
  Entries called;       ///< entries called in its callbacks, and not done
  std::optional<Entries::iterator> place;
  std::atomic<bool> has_place{false};  ///< the same, readable without the mutex
  std::uint64_t nesting = 0;           ///< entries between it and its parent that have left since

  std::uint64_t number = 0;  ///< in its group; 0: it has not started
  std::vector<Tracked> futures;
  std::optional<Deferred> deferred;
  Clock::time_point stuck_since = Clock::now();  ///< nothing has been in flight since
  bool holds_thread = false;                     ///< blocks its caller's thread, which starts it
  bool starting = false;
  std::function<void()> complete;  ///< set if it has ended, and waits for its turn
  Completer* completer = nullptr;
  bool running = false;   ///< its callbacks are running
  bool returned = false;  ///< its callbacks have returned
  bool released = false;  ///< it does not wait for earlier callbacks
  bool excused = false;   ///< its callbacks' calls do not wait either, while those before it sleep
  std::optional<IdleThread> thread;  ///< runs its callbacks
  std::atomic<int> in_flight{0};     ///< operations called by its callbacks; any thread

  [[nodiscard]] bool is_deferred() const { return deferred || holds_thread; }
  [[nodiscard]] bool is_parked() const { return complete && !running; }
  /// Whether callbacks of its own futures are running, or have yet to run.
  [[nodiscard]] bool awaits_callbacks(const Entry* apart_from = nullptr) const;
};

}  // namespace gtopk::torch_backend
