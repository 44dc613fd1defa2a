// Torch backend: one order, the same on every rank, for a group's collectives and those that
// callbacks of its futures call.
//
// Ranks must call collectives in one order, but a callback runs whenever its future completes: on
// a futures thread, or at once on the thread that attaches it, if the future is complete by then.
// So collectives are numbered as if each callback ran when it was attached: first those that the
// callback calls, then those that are called after it was attached. The latter are deferred: they
// start when the callback has returned. Callbacks run in the order of their collectives, one after
// the other. A collective whose callbacks have returned leaves the order, and what they have called
// takes its place, so that a chain of callbacks, each of which calls the next collective, is as
// deep as one link.
//
// A callback may wait for what comes after it. Where it waits for a deferred Work, that starts at
// once. Other waits cannot be seen: a callback counts as waiting when it calls nothing, nothing
// that it has called is in flight, and its thread has slept for a second. Then what comes next goes
// on.
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
    /// Starts it and returns its number; or, given an error, ends it with that and returns 0.
    std::function<std::uint64_t(const std::exception_ptr& error)> start;
    /// Of callbacks that have nothing in flight: operations have timeouts of their own.
    std::chrono::milliseconds timeout;
    /// It has waited for that long: ends the group, and closes the order.
    std::function<void()> late;
  };

  CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;
  CallOrder(CallOrder&&) = delete;
  CallOrder& operator=(CallOrder&&) = delete;
  ~CallOrder();

  /// The collective whose callback this thread runs, of whatever group; null: it runs none.
  [[nodiscard]] static const EntryPointer& calling();

  /// Meanwhile this thread runs a callback of that collective's future, or what that has called.
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

  /// Meanwhile an operation that callbacks of that collective have called is in flight. Null: none
  /// has called it.
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

  /// Whether a collective that this thread calls now has to wait for callbacks. A load of an atomic
  /// where no future is pending.
  [[nodiscard]] bool has_to_wait();
  /// Call advance() afterwards, without the locks that `start` takes: its turn may have come.
  [[nodiscard]] EntryPointer defer(Completer& completer, Deferred deferred);
  /// Starts and runs what has its turn.
  void advance();
  /// Blocks until it is this thread's turn; then the caller starts the collective and calls
  /// started(). Throws c10::DistBackendError at the deadline.
  [[nodiscard]] EntryPointer wait_for_turn(Completer& completer, Clock::time_point deadline);
  /// Its number; 0 if it failed to start.
  void started(const EntryPointer& entry, std::uint64_t number);

  /// Tracks a collective whose future has been made; null if the order has been closed.
  [[nodiscard]] EntryPointer track(std::uint64_t number, const EntryPointer& caller,
                                   c10::intrusive_ptr<Future> future);
  /// Callbacks of that future count as well; `ours` of those of the first one do not. Returns
  /// whether the collective is tracked, which one that was deferred is no longer when it has
  /// started.
  static bool also_track(const EntryPointer& entry, c10::intrusive_ptr<Future> future,
                         std::size_t ours);
  /// The collective has ended: runs `complete`, which completes its future and so runs callbacks;
  /// now or, if others come first, later on one of the completer's threads. What it throws goes on
  /// to the caller or to the completer, and the order goes on as if it had returned.
  void ended(const EntryPointer& entry, Completer& completer, std::function<void()> complete);

  /// A callback is about to wait for the collective.
  void wanted(const EntryPointer& entry);

  /// The group has ended: deferred collectives end with this error, and nothing waits any more.
  void close(const std::exception_ptr& error);
  /// The group begins anew.
  void reopen();

 private:
  using Entries = std::list<EntryPointer>;

  /// What a thread lets go of without the lock, as that may run Python.
  struct Trash;
  class Lock;
  using Ready = std::vector<std::pair<EntryPointer, std::function<void()>>>;

  // With the mutex held.
  [[nodiscard]] EntryPointer caller_of(const EntryPointer& entry) const;
  EntryPointer append(Completer& completer);
  [[nodiscard]] bool waits(const EntryPointer& parent, const Entry* entry) const;
  [[nodiscard]] static bool is_behind(const Entry& entry);
  [[nodiscard]] static bool has_callbacks(const Entry& entry);
  [[nodiscard]] static bool is_pending(const Entry& entry);
  [[nodiscard]] static bool may_leave(const Entry& entry);
  void untrack(Entry& entry);
  void settle(EntryPointer entry);
  void find_ready(const EntryPointer& parent, Ready& ready, EntryPointer& next);
  void start_watch(Completer& completer);
  [[nodiscard]] Entries& called_by(const EntryPointer& parent);

  static void run_soon(Ready ready);
  void run(const EntryPointer& entry, const std::function<void()>& complete);
  void has_run(const EntryPointer& entry);

  // The watch, on a futures thread while something waits.
  void watch();
  [[nodiscard]] static bool any_waits(const Entries& entries);
  struct Seen;
  [[nodiscard]] static bool release_next(const Entries& entries, bool& idle);
  [[nodiscard]] static bool any_in_flight(const Entries& entries);
  [[nodiscard]] static const Deferred* first_late(const Entries& entries, bool in_flight);

  std::mutex mutex_;
  std::condition_variable changed_;
  Entries root_;  ///< that no callback called; in call order
  std::atomic<std::size_t> tracked_{0};
  std::unique_ptr<Trash> trash_;
  bool closed_ = false;
  bool watching_ = false;
};

/// A collective. Guarded by the order's mutex, where nothing else is said.
struct CallOrder::Entry {
  struct Tracked {
    c10::intrusive_ptr<Future> future;
    std::size_t ours;  ///< callbacks that are not the user's
  };

  Entry(std::shared_ptr<CallOrder> its_order, const EntryPointer& caller);

  const std::shared_ptr<CallOrder> order;
  /// In whose callbacks it was called, of whatever groups, the innermost first, as far as they had
  /// a place then. Weak, or each link of a chain would keep all before it.
  std::vector<std::weak_ptr<Entry>> callers;
  EntryPointer parent;  ///< the innermost of this group that has a place
  Entries called;       ///< in its callbacks, and not done
  std::optional<Entries::iterator> place;
  std::atomic<bool> has_place{false};  ///< the same, readable without the mutex
  std::uint64_t nesting = 0;           ///< entries between it and its parent, which have left since

  std::uint64_t number = 0;  ///< among the group's; 0: it has not started
  std::vector<Tracked> futures;
  std::optional<Deferred> deferred;
  Clock::time_point stuck_since = Clock::now();  ///< in that time nothing has been in flight
  bool holds_thread = false;                     ///< that of its caller, which starts it
  bool starting = false;
  std::function<void()> complete;  ///< it has ended, and waits for its turn
  Completer* completer = nullptr;
  bool running = false;   ///< its callbacks are
  bool returned = false;  ///< they have
  bool released = false;  ///< it does not wait for callbacks before it
  bool excused = false;   ///< while those before it sleep, what its callbacks call does not, either
  std::optional<IdleThread> thread;  ///< that runs its callbacks
  std::atomic<int> in_flight{0};     ///< operations that its callbacks have called; any thread

  [[nodiscard]] bool is_deferred() const { return deferred || holds_thread; }
  [[nodiscard]] bool is_parked() const { return complete && !running; }
  /// Whether callbacks of its own futures run, or are still to run.
  [[nodiscard]] bool awaits_callbacks() const;
};

}  // namespace gtopk::torch_backend
