#include "src/engine/failures.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace gtopk::engine {
namespace {

using transport::PeerId;

/// How long a notice is kept for a group that other members have already made but this process has
/// not.
constexpr transport::Duration kEarlyBound = std::chrono::seconds(60);

}  // namespace

void Failures::fail_group(Group& group, const Error& cause, bool tell_others) {
  if (group.failure) {
    return;
  }
  group.failure = cause;
  if (tell_others) {
    announce(group, {NoticeKind::kGroupFailure, cause.kind(), 0, 0, cause.what()});
  }
  scheduler_.fail(group, cause);
  group.unread.clear();
  flow_control_.drop_group(group);
  stale_.add_group(group.id(), clock_.now());
}

void Failures::announce(Group& group, const Notice& notice) {
  membership_.tell_members(group, notice);
  failure_acks_.told(group, notice);
}

void Failures::peer_failed(const transport::PeerFailure& failure) {
  membership_.failed(failure.peer);
  for (const auto& group : groups_.all()) {
    const auto rank = group->rank_of(failure.peer);
    if (!rank) {
      continue;
    }
    const std::string& member = group->member(*rank);
    if (*rank == group->rank()) {
      fail_group(*group,
                 Error(ErrorKind::kTransport, fmt::format("{}: {}", member, failure.reason)), true);
      continue;
    }
    fail_group(*group,
               Error(ErrorKind::kPeerFailed,
                     fmt::format("{} {}: {} (noticed by rank {})", member,
                                 failure.never_reached ? "cannot be reached" : "is gone",
                                 failure.reason, group->rank())),
               true);
  }
}

std::optional<Error> Failures::refusal(const Operation& operation) {
  Group& group = operation.group();
  if (group.failure) {
    return Error(group.failure->kind(),
                 fmt::format("{}: {}", operation.label(), group.failure->what()), true);
  }
  if (operation.spec().point_to_point()) {
    return std::nullopt;
  }
  const auto found = group.aborted.find(operation.sequence());
  if (found == group.aborted.end()) {
    return std::nullopt;
  }
  Error cause = found->second;
  group.aborted.erase(found);
  discard_when_it_comes(group, operation.sequence());
  return cause;
}

void Failures::operation_ended(Operation& operation, const Scheduler::Outcome& outcome) {
  Group& group = operation.group();
  std::erase(asking_, &operation);
  std::erase_if(deserted_, [&](const auto& deserted) { return deserted.first == &operation; });
  if (!outcome.error) {
    last_error_.clear();
    return;
  }
  if (outcome.error->kind() != ErrorKind::kAborted) {
    last_error_ = outcome.error->what();
  }
  if (operation.spec().point_to_point()) {
    if (operation.transfer && operation.quiet() && !operation.transfer->left) {
      flow_control_.never_left(operation);  // sending its header was not even attempted
    } else if (operation.transfer && (!operation.quiet() || operation.sent_in_doubt())) {
      withdraw(group, *operation.transfer);
    }
    if (operation.announced) {
      stale_.add_payload(group.id(), *operation.announced, clock_.now());
    }
    return;
  }
  discard_when_it_comes(group, operation.sequence());
  if (outcome.caused_here) {
    announce(group, {NoticeKind::kAbort, outcome.error->kind(), 0, operation.sequence(),
                     outcome.error->what()});
  }
}

void Failures::handle(Group& group, PeerId from, const Notice& notice) {
  switch (notice.kind) {
    case NoticeKind::kAbort:
      handle_abort(group, from, notice);
      return;
    case NoticeKind::kGroupFailure:
      if (!group.failure) {
        membership_.pass_on(group, from, notice);
      }
      fail_group(group, Error(notice.error, notice.text), false);
      return;
    case NoticeKind::kAsk:
      handle_ask(group, from, notice);
      return;
    case NoticeKind::kCall:
      if (Operation* const operation = Scheduler::running(group, notice.sequence)) {
        operation->answer(*group.rank_of(from), notice.text);
      }
      return;
    case NoticeKind::kWithdraw:
      handle_withdrawal(group, Withdrawal::of(notice));
      return;
    case NoticeKind::kProbe:
    case NoticeKind::kReply:
    case NoticeKind::kGoodbye:
    case NoticeKind::kHeard:
    case NoticeKind::kAllHeard:
    case NoticeKind::kClear:
    case NoticeKind::kCredit:
    case NoticeKind::kUnmatched:
    case NoticeKind::kHello:
      return;
  }
}

void Failures::handle_abort(Group& group, PeerId from, const Notice& notice) {
  const Error cause(notice.error, notice.text);
  if (Operation* const operation = Scheduler::running(group, notice.sequence)) {
    if (!operation->cause()) {
      membership_.pass_on(group, from, notice);
    }
    operation->fail(cause);
  } else if (notice.sequence > group.arrived()) {
    if (group.aborted.emplace(notice.sequence, cause).second) {
      membership_.pass_on(group, from, notice);
    }
    discard_when_it_comes(group, notice.sequence);
  } else if (Scheduler::waits(group, notice.sequence)) {
    membership_.pass_on(group, from, notice);
    scheduler_.end_waiting(group, notice.sequence, cause);
    discard_when_it_comes(group, notice.sequence);
  }
}

void Failures::handle_ask(Group& group, PeerId from, const Notice& notice) {
  const Operation* const operation = Scheduler::running(group, notice.sequence);
  // The rank that failed the operation has said so, or was told by a rank that told all members.
  if (group.failure ||
      (operation != nullptr ? operation->cause().has_value()
                            : stale_.has_collective(group.id(), notice.sequence))) {
    return;
  }
  membership_.tell(
      group, *group.rank_of(from),
      {NoticeKind::kCall, ErrorKind::kMismatch, 0, notice.sequence,
       operation != nullptr ? operation->call() : "an operation that has ended there"});
}

void Failures::handle_early(PeerId from, const Notice& notice) {
  const transport::TimePoint now = clock_.now();
  // If the group exists, the notice concerns an earlier group with its number.
  const bool gone = groups_.find(notice.group) == nullptr;
  const bool joining = gone && groups_.taken(notice.group);
  std::erase_if(early_, [&](const Early& early) { return now - early.came >= kEarlyBound; });
  switch (notice.kind) {
    case NoticeKind::kProbe:
      membership_.tell_peer(
          from, {NoticeKind::kReply, ErrorKind::kTimeout, notice.answer_group, notice.sequence,
                 "has destroyed the group or not made it yet", notice.group});
      return;
    // Messages of the operation may have arrived, and their senders may wait until they are
    // received.
    case NoticeKind::kAbort:
      if (gone) {
        stale_.add_collective(notice.group, notice.sequence, now);
      }
      break;
    case NoticeKind::kGroupFailure:
      if (gone) {
        stale_.add_group(notice.group, now);
      }
      break;
    case NoticeKind::kWithdraw: {
      const Withdrawal withdrawal = Withdrawal::of(notice);
      const transport::Tag tag =
          transport::payload_tag(notice.group, withdrawal.source, withdrawal.serial);
      if (gone && !joining && !withdrawal.held) {
        stale_.add_payload(notice.group, tag, now);
      } else if (withdrawal.held && !joining) {
        Notice answer = unmatched(withdrawal);
        answer.group = notice.answer_group;
        answer.answer_group = notice.group;
        membership_.tell_peer(from, answer);
      }
      break;
    }
    case NoticeKind::kReply:
    case NoticeKind::kGoodbye:
    case NoticeKind::kAsk:
    case NoticeKind::kCall:
    case NoticeKind::kHeard:
    case NoticeKind::kAllHeard:
    case NoticeKind::kClear:
    case NoticeKind::kCredit:
    case NoticeKind::kUnmatched:
    case NoticeKind::kHello:
      return;
  }
  if (joining && early_.size() < transport::kMaxGroups) {
    early_.push_back({from, notice, now});
  }
}

std::vector<std::pair<PeerId, Notice>> Failures::take_early() {
  std::vector<std::pair<PeerId, Notice>> notices;
  for (Early& early : std::exchange(early_, {})) {
    notices.emplace_back(early.from, std::move(early.notice));
  }
  return notices;
}

void Failures::forget_group(std::uint32_t id) {
  // Leftovers of an earlier group with this number are indistinguishable from the new group's
  // messages.
  stale_.forget_group(id);
  stale_.discard_group(id);
  failure_acks_.forget_group(id);
  std::erase_if(early_, [&](const Early& early) { return early.notice.group == id; });
}

void Failures::withdraw(Group& group, const Transfer& transfer) {
  const Withdrawal withdrawal{group.rank(), transfer.tag, transfer.serial,
                              flow_control_.holds(group, transfer.to, transfer.serial),
                              transfer.apart};
  if (transfer.to == group.rank()) {
    handle_withdrawal(group, withdrawal);
  } else if (!membership_.has_left(group.peer(transfer.to))) {
    membership_.tell(group, transfer.to, withdrawal.notice());
  }
}

void Failures::handle_withdrawal(Group& group, const Withdrawal& withdrawal) {
  const transport::Tag header =
      transport::point_to_point_tag(group.id(), withdrawal.source, withdrawal.tag);
  // Messages that were sent before the notice have arrived before it, so if the header is not
  // there, a receive has matched it. Its payload arrives, because the sender keeps the memory until
  // then.
  if (!group.has_header(header, transport_)) {
    return;
  }
  const transport::Tag payload =
      transport::payload_tag(group.id(), withdrawal.source, withdrawal.serial);
  // The header may belong to a later message. Also, a receive that failed discards the payload
  // itself.
  const bool apart = !withdrawal.held && withdrawal.apart != 0;
  if (apart && (!transport_.lies_there(payload) || stale_.has_payload(group.id(), payload))) {
    return;
  }
  group.withdrawn.emplace(header, withdrawal.serial);
  if (apart) {
    stale_.add_payload(group.id(), payload, clock_.now());
    flow_control_.discarded(group, withdrawal.source, withdrawal.apart);
  } else if (withdrawal.held && withdrawal.source == group.rank()) {
    flow_control_.drop(group, group.rank(), withdrawal.serial);
  } else if (withdrawal.held) {
    membership_.tell(group, withdrawal.source, unmatched(withdrawal));
  }
}

Notice Failures::unmatched(const Withdrawal& withdrawal) {
  return {NoticeKind::kUnmatched, ErrorKind::kAborted, 0, withdrawal.serial, {}};
}

void Failures::ask_questions() {
  for (Operation* const operation : std::exchange(asking_, {})) {
    for (const std::uint32_t rank : operation->take_questions()) {
      membership_.tell(operation->group(), rank,
                       {NoticeKind::kAsk, ErrorKind::kMismatch, 0, operation->sequence(), {}});
    }
  }
}

bool Failures::fail_deserted() {
  if (deserted_.empty()) {
    return false;
  }
  const auto deserted = std::exchange(deserted_, {});
  for (const auto& [operation, rank] : deserted) {
    if (operation->cause()) {
      continue;
    }
    Group& group = operation->group();
    const Error cause(ErrorKind::kPeerFailed,
                      fmt::format("{}: {}", operation->label(), operation->departure_of(rank)));
    operation->fail(cause);
    if (operation->spec().point_to_point()) {
      continue;
    }
    announce(group, {NoticeKind::kAbort, cause.kind(), 0, operation->sequence(), cause.what()});
  }
  return true;
}

/// Discards messages on arrival, because their senders may wait until they are received.
void Failures::discard_when_it_comes(const Group& group, std::uint64_t sequence) {
  stale_.add_collective(group.id(), sequence, clock_.now());
}

}  // namespace gtopk::engine
