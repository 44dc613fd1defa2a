// Engine: runs every collective of a process as a coroutine over one transport, on one thread.
// What happens when something breaks is in failure.cpp, what the clock tells in deadlines.cpp; the
// thread and its sleep are in engine_thread.hpp.
#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "engine/buffer_pool.hpp"
#include "engine/compute.hpp"
#include "engine/control.hpp"
#include "engine/group.hpp"
#include "engine/group_ids.hpp"
#include "engine/lookup.hpp"
#include "engine/operation.hpp"
#include "engine/stale_messages.hpp"
#include "transport/base/transport.hpp"

namespace gtopk::engine {

class Engine final : public transport::AddressBook {
 public:
  /// Collectives of one group in flight at once; later ones wait. It bounds what a fast rank can
  /// pile up, unreceived, at a slow one. The oldest unfinished one is in flight on every rank, so
  /// none starves.
  static constexpr std::size_t kMaxInFlight = 32;
  /// How long a rank waits for answers to its probe before it calls the silent ones dead.
  static constexpr transport::Duration kProbeGrace = std::chrono::seconds(2);
  /// How long a failed operation's buffers may stay in the network, at peers that answer nothing,
  /// before the endpoints to those are closed by force.
  static constexpr transport::Duration kLingerBound = std::chrono::seconds(5);

  /// `lookups` may be null where the transport never asks for addresses.
  Engine(transport::Transport& transport, const transport::Clock& clock, Executor& executor,
         Lookups* lookups = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&&) = delete;
  Engine& operator=(Engine&&) = delete;
  ~Engine() override;

  // Any thread.

  /// Numbers the operation and hands it over; its `done` is called in any case, exactly once.
  void submit(const std::shared_ptr<Group>& group, OperationSpec spec);
  /// Runs `work` on the engine thread, in order with submissions.
  void post(std::function<void()> work);

  // Engine thread.

  /// A number for a group that this process is about to join; nothing of an earlier group of that
  /// number is left. Throws Error{kInvalidArgument} when this process is in too many.
  [[nodiscard]] std::uint32_t reserve_group_id();
  /// Of a group that was not added after all; a removed group gives its own back.
  void release_group_id(std::uint32_t id) { ids_.give_back(id); }
  /// spec.ids[spec.rank] must be reserved. Throws Error{kInvalidArgument, kBootstrap}.
  std::shared_ptr<Group> add_group(GroupSpec spec);
  /// Fails what is under way in it and forgets it.
  void remove_group(Group& group);
  /// Ends the group on every rank.
  void abort_group(Group& group, const Error& cause) { fail_group(group, cause, true); }
  /// Calls `then`, on this thread, as soon as nothing of the group is under way or waiting.
  void when_idle(const std::shared_ptr<Group>& group, std::function<void()> then);

  enum class Step : std::uint8_t {
    kNothing,
    kBytesMoved,  ///< and completed nothing: the middle of a long message
    kWorked,
  };
  /// One round of everything.
  Step step();
  /// When step() must be called again though nothing arrives.
  [[nodiscard]] transport::TimePoint next_timer() const { return next_timer_; }
  [[nodiscard]] bool has_queued() const;

  /// Operations under way, those that only wait for the network to let go of them included.
  [[nodiscard]] std::size_t under_way() const { return operations_.size(); }
  void fail_everything(const Error& cause);
  /// Tells every connected peer that this process leaves; then farewell_said() once they said so
  /// too.
  void say_goodbye();
  [[nodiscard]] bool farewell_said() const;
  /// Withdraws what is posted; step() until this returns true.
  [[nodiscard]] bool stop_listening();
  /// Ends, by force, the endpoints that still hold a request of an operation or a notice.
  void give_up_pending();

  // For the transport.
  void look_up(transport::PeerId peer) override;

  // For operations.
  [[nodiscard]] transport::Transport& transport() const { return transport_; }
  [[nodiscard]] const transport::Clock& clock() const { return clock_; }
  [[nodiscard]] Executor& executor() const { return executor_; }
  [[nodiscard]] BufferPool& pool() { return pool_; }
  /// Storage of operations that have gone, for the next ones.
  [[nodiscard]] std::vector<std::unique_ptr<OperationStorage>>& storages() { return storages_; }
  void make_ready(std::coroutine_handle<> handle, Operation& operation) {
    ready_.push_back({handle, &operation});
  }
  /// The operation has a truncated message, whose sender is asked in the next step().
  void has_question(Operation& operation) { asking_.push_back(&operation); }
  /// Of a point-to-point message. One count for all groups: a withdrawal that comes late cannot
  /// mean a message of the next group of that number.
  [[nodiscard]] std::uint32_t take_serial() { return next_serial_++; }
  /// The peer has gone, in order or not.
  [[nodiscard]] bool has_left(transport::PeerId peer) const { return departed_.contains(peer); }
  /// The operation waited for a message of that rank, which has left without sending it; it fails
  /// in the next step().
  void is_deserted(Operation& operation, std::uint32_t rank) {
    deserted_.emplace_back(&operation, rank);
  }

 private:
  struct Ready {
    std::coroutine_handle<> handle;
    Operation* operation;
  };
  /// Either some work or an operation.
  struct Queued {
    std::function<void()> work;
    std::shared_ptr<Group> group;
    std::uint64_t sequence = 0;
    OperationSpec spec;
  };
  /// A notice for a group that is not made here yet.
  struct Early {
    transport::PeerId from;
    Notice notice;
    transport::TimePoint came;
  };

  bool take_queue();
  bool resume_ready();
  void admit(const std::shared_ptr<Group>& group, std::unique_ptr<Operation> operation);
  void start_waiting(Group& group);
  void start_those_that_may(Group& group);
  void start(std::unique_ptr<Operation> operation);
  void finish(Operation& operation);
  void forget_quiet();
  [[nodiscard]] bool idle(const Group& group) const;

  // failure.cpp
  bool handle_failures();
  bool handle_notices();
  void handle(transport::PeerId from, const Notice& notice);
  void handle_early(transport::PeerId from, const Notice& notice);
  void ask_questions();
  void handle_goodbye(transport::PeerId from);
  void say_goodbye_to(transport::PeerId peer);
  bool fail_deserted();
  void withdraw(Group& group, const Transfer& transfer);
  void handle_withdrawal(Group& group, const Withdrawal& withdrawal);
  void fail_group(Group& group, const Error& cause, bool tell_others);
  /// Makes it a notice of that group.
  void tell(Group& group, std::uint32_t rank, Notice notice);
  void tell_members(Group& group, const Notice& notice);
  void pass_on(Group& group, transport::PeerId from, const Notice& notice);
  void discard_when_it_comes(const Group& group, std::uint64_t sequence);

  // deadlines.cpp
  void check_timers();
  void check_lingering(Operation& operation, transport::TimePoint now);
  void check_waiting(const Group& group, transport::TimePoint now);
  void probe(Operation& operation);
  void conclude(Operation& operation);
  [[nodiscard]] std::string describe_state(const Group& group, std::uint64_t sequence) const;
  [[nodiscard]] std::shared_ptr<Group> find_group(std::uint32_t id) const;

  transport::Transport& transport_;
  const transport::Clock& clock_;
  Executor& executor_;
  BufferPool pool_;
  std::vector<std::unique_ptr<OperationStorage>> storages_;
  Lookups* lookups_;
  Control control_;
  GroupIds ids_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Ready> ready_;
  std::vector<Ready> resuming_;
  StaleMessages stale_;
  std::vector<Early> early_;
  std::set<transport::PeerId> departed_;
  std::vector<std::pair<Operation*, std::uint32_t>> deserted_;  ///< and by which rank
  std::map<transport::PeerId, transport::TimePoint> heard_;     ///< its last notice
  std::set<transport::PeerId> farewells_;  ///< to whom this process has said goodbye
  std::vector<Operation*> asking_;
  std::vector<std::pair<std::shared_ptr<Group>, std::function<void()>>> idle_waiters_;
  transport::TimePoint next_timer_{};
  std::uint32_t next_serial_ = 0;

  mutable std::mutex mutex_;
  std::vector<Queued> queue_;
  std::vector<Queued> taking_;
};

}  // namespace gtopk::engine
