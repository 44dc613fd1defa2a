// Torch backend: one order, the same on every rank, for a group's collectives and for the
// collectives that callbacks of its futures call.
//
// Ranks must call collectives in one order, but a callback runs whenever its future completes: on a
// futures thread, or at once on the thread that attaches it, if the future is complete by then. So
// collectives are numbered as if each callback ran when it was attached: first the collectives that
// the callback calls, then the collectives that are called after it was attached. The latter are
// deferred: they start when the callback has returned. Callbacks run in the order of their
// collectives, one after the other. A collective whose callbacks have returned leaves the order,
// and the collectives that they called take its place, so that a chain of callbacks, each of which
// calls the next collective, is only one link deep.
//
// A callback may wait for something that comes after it. If it waits for a deferred Work, that Work
// starts at once. Other waits are invisible. A callback counts as waiting when it calls nothing,
// nothing that it called is in flight, and its thread has slept for a second. Then the next entries
// may start.
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
    /// Starts the collective and returns its number. If given an error, ends it with that error and
    /// returns 0.
    std::function<std::uint64_t(const std::exception_ptr& error)> start;
    /// The time limit for callbacks with nothing in flight; operations have their own timeouts.
    std::chrono::milliseconds timeout;
    /// Called after that time. Ends the group and closes the order.
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

  /// While it lives, this thread runs a callback of that collective's future, or code called by it.
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

  /// While it lives, an operation that a callback of that collective called is in flight. The entry
  /// is null if no callback called the operation.
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

  /// Whether a collective that this thread calls now has to wait for callbacks. If no future is
  /// pending, this only loads an atomic.
  [[nodiscard]] bool has_to_wait();
  /// Defers a collective. Call advance() afterwards, without the locks that `start` takes, because
  /// its turn may have come.
  [[nodiscard]] EntryPointer defer(Completer& completer, Deferred deferred);
  /// Removes entries whose callbacks have returned, and starts and runs everything whose turn has
  /// come.
  void advance();
  /// Blocks until it is this thread's turn; then the caller starts the collective and calls
  /// started(). Throws c10::DistBackendError at the deadline.
  [[nodiscard]] EntryPointer wait_for_turn(Completer& completer, Clock::time_point deadline);
  /// Reports that a collective has started. `number` is its number, or 0 if it failed to start.
  void started(const EntryPointer& entry, std::uint64_t number);

  /// Tracks a collective whose future has been made; null if the order has been closed.
  [[nodiscard]] EntryPointer track(std::uint64_t number, const EntryPointer& caller,
                                   c10::intrusive_ptr<Future> future);
  /// Also counts callbacks of that future, except `ours` of the first future's. Returns whether the
  /// collective is tracked; a deferred one is no longer tracked once it has started.
  static bool also_track(const EntryPointer& entry, c10::intrusive_ptr<Future> future,
                         std::size_t ours);
  /// Must be called when the collective has ended. Runs `complete`, which completes its future and
  /// so runs its callbacks, either now or, if other callbacks come first, later on one of the
  /// completer's threads. Exceptions that it throws reach the caller or the completer, and the
  /// order continues as if it had returned.
  void ended(const EntryPointer& entry, Completer& completer, std::function<void()> complete);

  /// Must be called before a callback waits for the collective.
  void wanted(const EntryPointer& entry);

  /// Must be called when the group has ended. Deferred collectives end with this error, and nothing
  /// waits any more.
  void close(const std::exception_ptr& error);
  /// Must be called when the group starts anew.
  void reopen();

 private:
  using Entries = std::list<EntryPointer>;

  /// Objects that a thread releases without the lock, because releasing them may run Python.
  struct Trash;
  class Lock;
  using Ready = std::vector<std::pair<EntryPointer, std::function<void()>>>;

  // These must be called with the mutex held.
  [[nodiscard]] EntryPointer caller_of(const EntryPointer& entry) const;
  EntryPointer append(Completer& completer);
  [[nodiscard]] bool waits(const EntryPointer& parent, const Entry* entry) const;
  [[nodiscard]] static bool is_behind(const Entry& entry);
  // Callbacks of the futures of `apart_from` do not count.
  [[nodiscard]] static bool has_callbacks(const Entry& entry, const Entry* apart_from = nullptr);
  [[nodiscard]] static bool is_pending(const Entry& entry, const Entry* apart_from = nullptr);
  [[nodiscard]] static bool may_leave(const Entry& entry);
  void untrack(Entry& entry);
  /// Removes the entries that `parent` has called and that may leave.
  void settle(const EntryPointer& parent);
  void find_ready(const EntryPointer& parent, Ready& ready, EntryPointer& next);
  void start_watch(Completer& completer);
  [[nodiscard]] Entries& called_by(const EntryPointer& parent);

  static void run_soon(Ready ready);
  void run(const EntryPointer& entry, const std::function<void()>& complete);
  void has_run(const EntryPointer& entry);

  // The watch runs on a futures thread while an entry waits.
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

/// A collective in the order. It is guarded by the order's mutex unless stated otherwise.
struct CallOrder::Entry {
  struct Tracked {
    c10::intrusive_ptr<Future> future;
    std::size_t ours;  ///< number of callbacks that are not the user's
  };

  Entry(std::shared_ptr<CallOrder> its_order, const EntryPointer& caller);

  const std::shared_ptr<CallOrder> order;
  /// The entries, of any group, in whose callbacks it was called, innermost first, if they had a
  /// place then. They are weak because each link of a chain would otherwise keep all earlier ones.
  std::vector<std::weak_ptr<Entry>> callers;
  EntryPointer parent;  ///< the innermost caller in this group that has a place
  Entries called;       ///< entries called in its callbacks that are not done
  std::optional<Entries::iterator> place;
  std::atomic<bool> has_place{false};  ///< whether it has a place; readable without the mutex
  std::uint64_t nesting = 0;           ///< entries between it and its parent that have since left

  std::uint64_t number = 0;  ///< number in its group; 0 if it has not started
  std::vector<Tracked> futures;
  std::optional<Deferred> deferred;
  Clock::time_point stuck_since = Clock::now();  ///< nothing has been in flight since
  bool holds_thread = false;                     ///< blocks its caller's thread, which starts it
  bool starting = false;
  std::function<void()> complete;  ///< set if it has ended and waits for its turn
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
