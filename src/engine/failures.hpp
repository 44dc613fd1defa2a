// Engine: handles ranks that die, fail or call something else. Every waiting rank gets an error
// with the same cause, and the failed operation's messages are removed from the network. probes.hpp
// handles failures that only timeouts reveal.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gtopk/error.hpp"
#include "src/engine/failure_acks.hpp"
#include "src/engine/flow_control.hpp"
#include "src/engine/group_table.hpp"
#include "src/engine/membership.hpp"
#include "src/engine/notice.hpp"
#include "src/engine/scheduler.hpp"
#include "src/engine/stale_messages.hpp"

namespace gtopk::engine {

class Failures {
 public:
  Failures(transport::Transport& transport, const transport::Clock& clock, GroupTable& groups,
           Scheduler& scheduler, Membership& membership, FailureAcks& failure_acks,
           FlowControl& flow_control, StaleMessages& stale)
      : transport_(transport),
        clock_(clock),
        groups_(groups),
        scheduler_(scheduler),
        membership_(membership),
        failure_acks_(failure_acks),
        flow_control_(flow_control),
        stale_(stale) {}

  /// Fails the group here and, if `tell_others`, on the other ranks. The first cause wins.
  void fail_group(Group& group, const Error& cause, bool tell_others);
  /// Fails every group that the peer is in.
  void peer_failed(const transport::PeerFailure& failure);
  /// The error with which a new operation must end without running; empty if it may run.
  [[nodiscard]] std::optional<Error> refusal(const Operation& operation);
  /// Reports an operation's end to the other ranks if they must know.
  void operation_ended(Operation& operation, const Scheduler::Outcome& outcome);

  /// The error of the last operation, if it failed and was not aborted; otherwise empty.
  [[nodiscard]] const std::string& last_error() const { return last_error_; }

  /// Handles kAbort, kGroupFailure, kAsk, kCall, kWithdraw.
  void handle(Group& group, transport::PeerId from, const Notice& notice);
  /// Handles a notice for a group that does not exist here, yet or any more.
  void handle_early(transport::PeerId from, const Notice& notice);
  /// Takes the notices that arrived before their group existed.
  [[nodiscard]] std::vector<std::pair<transport::PeerId, Notice>> take_early();
  /// Must be called when the number belongs to a new group.
  void forget_group(std::uint32_t id);

  /// The operation has a truncated message; ask_questions() asks its sender what it called.
  void has_question(Operation& operation) { asking_.push_back(&operation); }
  void ask_questions();
  /// The operation waited for `rank`, which has left without sending or without receiving a
  /// message; it fails in fail_deserted().
  void is_deserted(Operation& operation, std::uint32_t rank) {
    deserted_.emplace_back(&operation, rank);
  }
  /// Fails deserted operations; returns whether there were any.
  bool fail_deserted();

 private:
  /// A notice for a group that this process has not made yet.
  struct Early {
    transport::PeerId from;
    Notice notice;
    transport::TimePoint came;
  };

  /// Tells every other member of a failure.
  void announce(Group& group, const Notice& notice);
  void handle_abort(Group& group, transport::PeerId from, const Notice& notice);
  void handle_ask(Group& group, transport::PeerId from, const Notice& notice);
  void withdraw(Group& group, const Transfer& transfer);
  void handle_withdrawal(Group& group, const Withdrawal& withdrawal);
  [[nodiscard]] static Notice unmatched(const Withdrawal& withdrawal);
  void discard_when_it_comes(const Group& group, std::uint64_t sequence);

  transport::Transport& transport_;
  const transport::Clock& clock_;
  GroupTable& groups_;
  Scheduler& scheduler_;
  Membership& membership_;
  FailureAcks& failure_acks_;
  FlowControl& flow_control_;
  StaleMessages& stale_;
  std::vector<Operation*> asking_;
  /// Deserted operations, and the rank that left each.
  std::vector<std::pair<Operation*, std::uint32_t>> deserted_;
  std::vector<Early> early_;
  std::string last_error_;
};

}  // namespace gtopk::engine
