// Engine: runs every collective of a process as a coroutine over one transport, on one thread. It
// connects its parts: what runs when (scheduler.hpp), which peers are present (membership.hpp),
// what fails (failures.hpp) and who has heard of it (failure_acks.hpp), how far messages run ahead
// of their receives (flow_control.hpp), which peers have not answered (inquiries.hpp), which
// operations are late (probes.hpp), and which messages arrive too late (stale_messages.hpp) or from
// outside (strangers.hpp). The thread and its sleep are in engine_thread.hpp.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "src/engine/buffer_pool.hpp"
#include "src/engine/compute.hpp"
#include "src/engine/failure_acks.hpp"
#include "src/engine/failures.hpp"
#include "src/engine/flow_control.hpp"
#include "src/engine/group.hpp"
#include "src/engine/group_table.hpp"
#include "src/engine/inquiries.hpp"
#include "src/engine/lookup.hpp"
#include "src/engine/membership.hpp"
#include "src/engine/meter.hpp"
#include "src/engine/observer.hpp"
#include "src/engine/operation.hpp"
#include "src/engine/probes.hpp"
#include "src/engine/scheduler.hpp"
#include "src/engine/stale_messages.hpp"
#include "src/engine/strangers.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class AnySender;

class Engine final : public transport::AddressBook {
 public:
  static constexpr std::size_t kMaxInFlight = Scheduler::kMaxInFlight;
  static constexpr transport::Duration kProbeGrace = Probes::kProbeGrace;
  static constexpr transport::Duration kLingerBound = Probes::kLingerBound;

  /// `lookups` may be null if the transport never asks for addresses, `key` if the job has no
  /// secret.
  Engine(transport::Transport& transport, const transport::Clock& clock, Executor& executor,
         Lookups* lookups = nullptr, std::shared_ptr<const transport::JobKey> key = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&&) = delete;
  Engine& operator=(Engine&&) = delete;
  ~Engine() override;

  // The following may be called on any thread.

  /// Numbers the operation and queues it; its `done` is called in any case, exactly once. Returns
  /// its number among the group's collectives, from 1; 0 for a point-to-point message. For `input`,
  /// see gtopk::Call.
  std::uint64_t submit(const std::shared_ptr<Group>& group, OperationSpec spec,
                       std::shared_ptr<Gate> input = nullptr);
  /// Runs `work` on the engine thread, in order with submissions.
  void post(std::function<void()> work);
  [[nodiscard]] bool has_queued() const { return scheduler_.has_queued(); }

  // The following must be called on the engine thread.

  /// Reserves a number for a group that this process is about to join. Nothing is left of an
  /// earlier group with that number. Throws Error{kInvalidArgument} if this process is in too many
  /// groups.
  [[nodiscard]] std::uint32_t reserve_group_id();
  /// Releases the number of a group that was not added after all; remove_group() releases it
  /// itself.
  void release_group_id(std::uint32_t id) { groups_.release(id); }
  /// Adds a group; spec.ids[spec.rank] must be reserved. Throws Error{kInvalidArgument,
  /// kBootstrap}.
  std::shared_ptr<Group> add_group(GroupSpec spec);
  /// Fails the group's operations in flight and removes it.
  void remove_group(Group& group);
  /// Fails the group on every rank.
  void abort_group(Group& group, const Error& cause) { failures_.fail_group(group, cause, true); }
  /// Calls `then`, on this thread, as soon as no operation of the group is running or waiting.
  void when_idle(const std::shared_ptr<Group>& group, std::function<void()> then) {
    scheduler_.when_idle(group, std::move(then));
  }

  enum class Step : std::uint8_t {
    kNothing,
    kBytesMoved,  ///< it moved bytes but completed nothing: in the middle of a long message
    kWorked,
  };
  /// Runs one round of all parts.
  Step step();
  /// The time at which step() must be called again even if nothing arrives.
  [[nodiscard]] transport::TimePoint next_timer() const {
    return std::min({scheduler_.next_timer(), stale_.next_sweep(), strangers_.next_look(),
                     inquiries_.next_check()});
  }

  /// The number of messages from outside this process's groups that were dropped.
  [[nodiscard]] std::uint64_t dropped_of_strangers() const { return strangers_.dropped(); }
  /// The number of operations in flight, including those that only wait for the network to release
  /// their memory.
  [[nodiscard]] std::size_t under_way() const { return scheduler_.operations().size(); }
  void fail_everything(const Error& cause);
  /// Whether every member has heard of the failures that this process knows of; see FailureAcks.
  [[nodiscard]] bool all_have_heard() const { return failure_acks_.all_have_heard(); }
  /// Sets the reason why this process is about to leave, which other ranks' errors quote. Without
  /// it they quote the error of the last operation, if that failed.
  void set_last_words(std::string text) { last_words_ = std::move(text); }
  [[nodiscard]] std::string last_words() const {
    const std::string& text = last_words_.empty() ? failures_.last_error() : last_words_;
    return text.substr(0, Notice::kMaxText);
  }
  /// Tells every connected peer that this process leaves; farewell_said() is true once all of them
  /// have answered.
  void say_goodbye() { membership_.say_goodbye(last_words()); }
  [[nodiscard]] bool farewell_said() const { return membership_.farewell_said(); }
  /// Valid after say_goodbye(); see Membership.
  [[nodiscard]] bool unaware_peer() const { return membership_.unaware_peer(); }
  [[nodiscard]] bool anyone_has_left() const { return membership_.anyone_has_left(); }
  /// Cancels posted receives; call step() until this returns true.
  [[nodiscard]] bool stop_listening() { return membership_.stop_listening(); }
  /// Force-closes the endpoints that still hold a request of an operation, or a notice.
  void give_up_pending();

  /// Sets the function that makes a device current on this thread; it is called before a device's
  /// memory is passed to the transport, if the device has changed.
  void use(std::function<void(Memory)> make_current) { make_current_ = std::move(make_current); }

  // The following is called by the transport.
  void look_up(transport::PeerId peer) override { inquiries_.look_up(peer); }

  // The following are used by operations.
  [[nodiscard]] transport::Transport& transport() const { return transport_; }
  [[nodiscard]] const transport::Clock& clock() const { return clock_; }
  [[nodiscard]] Executor& executor() const { return executor_; }
  [[nodiscard]] BufferPool& pool() { return pool_; }
  /// Throws what the function of use() throws.
  void make_current(Memory memory);
  /// The storage of finished operations, kept for reuse.
  [[nodiscard]] std::vector<std::unique_ptr<OperationStorage>>& storages() { return storages_; }
  [[nodiscard]] Scheduler& scheduler() { return scheduler_; }
  [[nodiscard]] FlowControl& flow_control() { return flow_control_; }
  /// The observers of operations. They are not notified of operations that the destructor ends.
  [[nodiscard]] Observers& observers() { return observers_; }
  void make_ready(std::coroutine_handle<> handle, Operation& operation) {
    scheduler_.make_ready(handle, operation);
  }
  /// Returns a serial number for a point-to-point message. All groups share one counter, so that a
  /// late withdrawal cannot match a message of the next group with the same number.
  [[nodiscard]] std::uint32_t take_serial() { return next_serial_++; }
  /// Returns a number for an operation, unique in this engine.
  [[nodiscard]] std::uint64_t take_number() { return next_number_++; }
  [[nodiscard]] bool has_left(transport::PeerId peer) const { return membership_.has_left(peer); }
  [[nodiscard]] const std::string& last_words(transport::PeerId peer) const {
    return membership_.last_words(peer);
  }
  /// See Membership.
  void contact(transport::PeerId peer) { membership_.contact(peer); }
  /// Whether the request has been sent, or its endpoint has ended, and it is not yet known whether
  /// the peer is alive, has left or has died. In a job with a secret, also true if a message was
  /// received from a peer that has not proved that it knows the secret.
  [[nodiscard]] bool in_doubt(const transport::Request& request) const;
  /// Checks for a message from any sender in every step, in call order.
  void watch(AnySender& sender) {
    if (std::ranges::count(any_senders_, &sender) == 0) {
      any_senders_.push_back(&sender);
    }
  }
  void forget(const AnySender& sender) { std::erase(any_senders_, &sender); }
  [[nodiscard]] bool is_watched_like(const AnySender& sender) const;
  /// See Failures.
  void has_question(Operation& operation) { failures_.has_question(operation); }
  void is_deserted(Operation& operation, std::uint32_t rank) {
    failures_.is_deserted(operation, rank);
  }

 private:
  void admit(Scheduler::Queued& call);
  void look_for_any_sender();
  bool handle_failures();
  bool handle_notices();
  void handle(transport::PeerId from, const Notice& notice);
  /// Passes the notice to its group, or keeps it for a future group.
  void hand_on(transport::PeerId from, const Notice& notice);
  void handle_hello(transport::PeerId from, const std::string& address);
  void peer_answered(transport::PeerId peer);
  void peer_failed(transport::PeerFailure failure);
  void peer_left(transport::PeerId peer, const std::string& last_words);
  void check_timers();

  transport::Transport& transport_;
  const transport::Clock& clock_;
  Executor& executor_;
  std::string last_words_;
  std::uint32_t next_serial_ = 0;
  std::uint64_t next_number_ = 0;
  std::vector<AnySender*> any_senders_;
  std::function<void(Memory)> make_current_;
  Memory current_;

  // Each part knows the parts above it. The scheduler owns operations, which return memory to the
  // pools.
  BufferPool pool_;
  std::vector<std::unique_ptr<OperationStorage>> storages_;
  Meter meter_;
  Observers observers_;
  GroupTable groups_;
  StaleMessages stale_;
  Membership membership_;
  FailureAcks failure_acks_;
  FlowControl flow_control_;
  Strangers strangers_;
  Scheduler scheduler_;
  Failures failures_;
  Probes probes_;
  Inquiries inquiries_;
};

}  // namespace gtopk::engine
