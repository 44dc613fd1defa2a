// Engine: decides what runs when: the queue of calls, the bound on operations in flight, ready
// coroutines, turns, and the next timer. It knows nothing of the network; its owner decides what
// happens to a call, and is notified of every end.
#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gtopk/error.hpp"
#include "gtopk/gate.hpp"
#include "src/engine/awaited_input.hpp"
#include "src/engine/group_table.hpp"
#include "src/engine/operation.hpp"
#include "src/transport/base/clock.hpp"

namespace gtopk::engine {

class Scheduler {
 public:
  /// The number of collectives of one group that may be in flight at once; later ones wait. This
  /// bounds the unreceived messages that a fast rank can accumulate at a slow one. The oldest
  /// unfinished one is in flight on every rank, so none starves. Collectives waiting at a gate do
  /// not count.
  static constexpr std::size_t kMaxInFlight = 32;

  /// A call on its way to the engine thread.
  struct Queued {
    std::shared_ptr<Group> group;
    std::uint64_t sequence = 0;
    transport::TimePoint time{};
    OperationSpec spec;
    std::shared_ptr<Gate> input;
  };
  /// How an operation's body ended.
  struct Outcome {
    std::optional<Error> error;
    /// True if nothing outside the body failed it.
    bool caused_here = false;
  };
  struct Hooks {
    /// Called for every call, in order; must pass it to admit(), or end it at once.
    std::function<void(Queued&)> called;
    /// Called for each operation that ran, before its caller is notified.
    std::function<void(Operation&, const Outcome&)> ended;
  };

  Scheduler(const transport::Clock& clock, const GroupTable& groups, Hooks hooks)
      : clock_(clock), groups_(groups), hooks_(std::move(hooks)) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  Scheduler(Scheduler&&) = delete;
  Scheduler& operator=(Scheduler&&) = delete;
  /// Ends all remaining operations with Error{kAborted}.
  ~Scheduler();

  // The following may be called on any thread.

  /// Numbers the operation and returns its number among the group's collectives; see
  /// Engine::submit.
  std::uint64_t submit(const std::shared_ptr<Group>& group, OperationSpec spec,
                       std::shared_ptr<Gate> input);
  /// Queues work for the engine thread. `wake`, if not null, is called before the work can be
  /// taken, because the work may be followed by the end of the engine and of the object that wakes
  /// its thread.
  void post(std::function<void()> work, const std::function<void()>& wake = nullptr);
  [[nodiscard]] bool has_queued() const;

  // The following run on the engine thread and are the parts of a step. Each returns whether it did
  // anything.

  bool take_queue();
  bool resume_ready();
  /// Destroys operations that the network no longer uses, and calls those waiting for idle groups.
  void forget_quiet();

  /// Starts the operation as soon as possible. If `input` is null, the input is ready.
  void admit(std::unique_ptr<Operation> operation, std::unique_ptr<AwaitedInput> input = nullptr);
  /// Starts operations whose input has arrived.
  void input_came(Group& group);
  /// Runs operations that have waited too long for their input without it, so that they fail.
  static void give_up_late_inputs(Group& group, transport::TimePoint now);
  void make_ready(std::coroutine_handle<> handle, Operation& operation) {
    ready_.push_back({handle, &operation});
  }
  /// Calls `then`, on this thread, as soon as no operation of the group is running or waiting.
  void when_idle(const std::shared_ptr<Group>& group, std::function<void()> then);
  /// Whether no operation of the group is running or waiting. With `but_for_gates`, operations that
  /// wait at a gate do not count.
  [[nodiscard]] bool idle(const Group& group, bool but_for_gates = false) const;

  using Operations = std::list<std::unique_ptr<Operation>>;  ///< in starting order
  /// Operations in flight, including those that only wait for the network to release their memory.
  [[nodiscard]] const Operations& operations() const { return operations_; }
  /// The running collective with that number, or null.
  [[nodiscard]] static Operation* running(const Group& group, std::uint64_t sequence);
  [[nodiscard]] static Operation* oldest_running(const Group& group);
  /// Whether the collective waits to be put in flight.
  [[nodiscard]] static bool waits(const Group& group, std::uint64_t sequence);
  /// Whether a collective that waits to be put in flight is past its deadline.
  [[nodiscard]] static bool any_waits_too_long(const Group& group, transport::TimePoint now);
  /// Ends a collective that waits to be put in flight.
  void end_waiting(Group& group, std::uint64_t sequence, const Error& cause);
  /// Fails the group's running operations, and ends those that wait.
  void fail(Group& group, const Error& cause);

  // Turns: each group has a queue of operations whose front holds the links.
  static void enter_line(Operation& operation);
  /// Resumes the next operation in line.
  void leave_line(Operation& operation);
  [[nodiscard]] static bool has_turn(const Operation& operation);

  // Gates: an operation that waits at a gate has nothing more to exchange, and gives up its place
  // in flight.
  void wait_at_gate(Operation& operation);
  static void leave_gate(Operation& operation);

  // Timers.
  [[nodiscard]] transport::TimePoint next_timer() const { return next_timer_; }
  /// Ensures that next_timer() is not after `time`.
  void wake_by(transport::TimePoint time) { next_timer_ = std::min(next_timer_, time); }
  /// Sets the next timer from the operations' deadlines; call it after handling the due ones.
  void plan_timers(transport::TimePoint now);

 private:
  struct Ready {
    std::coroutine_handle<> handle;
    Operation* operation;
  };
  /// Either posted work or a call.
  struct Entry {
    std::function<void()> work;
    Queued call;
  };

  void start_waiting(Group& group);
  void start_those_that_may(Group& group);
  void start(std::unique_ptr<Operation> operation);
  void finish(Operation& operation);

  const transport::Clock& clock_;
  const GroupTable& groups_;
  Hooks hooks_;
  Operations operations_;
  Operations spare_;  ///< nodes without an operation, so that the steady state does not allocate
  std::size_t most_operations_ = 0;              ///< most in flight since memory was last returned
  std::vector<Operations::iterator> lingering_;  ///< operations that have ended
  std::vector<Ready> ready_;
  std::vector<Ready> resuming_;
  std::vector<std::pair<std::shared_ptr<Group>, std::function<void()>>> idle_waiters_;
  transport::TimePoint next_timer_{};

  mutable std::mutex mutex_;
  std::vector<Entry> queue_;
  std::vector<Entry> taking_;
};

}  // namespace gtopk::engine
