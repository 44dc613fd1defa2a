// Engine: what happens when a rank is gone, has failed or calls something else. Every rank that
// waits gets an error with the same cause, and the network is cleared of what the failed operation
// left in it. What time alone tells is in deadlines.cpp.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/engine.hpp"

namespace gtopk::engine {
namespace {

using transport::PeerId;

/// A notice for a group that is not made here is kept so long: its other members made it already.
constexpr transport::Duration kEarlyBound = std::chrono::seconds(60);

}  // namespace

std::shared_ptr<Group> Engine::find_group(std::uint32_t id) const {
  for (const auto& group : groups_) {
    if (group->id() == id) return group;
  }
  return nullptr;
}

void Engine::tell(Group& group, std::uint32_t rank, Notice notice) {
  notice.group = group.id_at(rank);
  notice.answer_group = group.id();
  control_.send(group.peer(rank), notice);
  group.counters.notices_sent.fetch_add(1, std::memory_order_relaxed);
}

void Engine::tell_members(Group& group, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (rank != group.rank() && !has_left(group.peer(rank))) tell(group, rank, notice);
  }
}

// This rank may leave as soon as it has failed, and its goodbye would reach those that it is
// connected to before the notice of the one who saw the failure: they would take it for the cause.
void Engine::pass_on(Group& group, PeerId from, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    if (rank == group.rank() || peer == from || has_left(peer)) continue;
    if (transport_.connected(peer)) tell(group, rank, notice);
  }
}

void Engine::fail_group(Group& group, const Error& cause, bool tell_others) {
  if (group.failure) return;
  group.failure = cause;
  if (tell_others) {
    tell_members(group, {NoticeKind::kGroupFailure, cause.kind(), 0, 0, cause.what()});
  }
  const auto with_label = [&](const Operation& operation) {
    return Error(cause.kind(), fmt::format("{}: {}", operation.label(), cause.what()));
  };
  std::deque<std::unique_ptr<Operation>> waiting;
  waiting.swap(group.waiting);
  for (const auto& operation : operations_) {
    if (&operation->group() == &group) operation->fail(with_label(*operation));
  }
  for (const auto& operation : waiting) operation->tell(with_label(*operation));
  stale_.add_group(group.id(), clock_.now());
  next_timer_ = std::min(next_timer_, stale_.next_sweep());
}

bool Engine::handle_failures() {
  const std::vector<transport::PeerFailure> failures = transport_.take_failures();
  for (const transport::PeerFailure& failure : failures) {
    departed_.insert(failure.peer);
    for (const auto& group : groups_) {
      if (const auto rank = group->rank_of(failure.peer)) {
        fail_group(*group,
                   Error(ErrorKind::kPeerFailed,
                         fmt::format("{} is gone: {} (noticed by rank {})", group->member(*rank),
                                     failure.reason, group->rank())),
                   true);
      }
    }
  }
  return !failures.empty();
}

bool Engine::handle_notices() {
  const auto notices = control_.take();
  for (const auto& [from, notice] : notices) handle(from, notice);
  return !notices.empty();
}

void Engine::handle(PeerId from, const Notice& notice) {
  heard_[from] = clock_.now();
  if (notice.kind == NoticeKind::kGoodbye) {
    handle_goodbye(from);
    return;
  }
  const std::shared_ptr<Group> group = find_group(notice.group);
  if (group == nullptr || !group->rank_of(from)) {
    handle_early(from, notice);
    return;
  }
  transport_.prepare(from);  // it waits for our goodbye, and then it may be late for its address
  switch (notice.kind) {
    case NoticeKind::kAbort: {
      const Error cause(notice.error, notice.text);
      if (const auto found = group->running.find(notice.sequence); found != group->running.end()) {
        if (!found->second->cause()) pass_on(*group, from, notice);
        found->second->fail(cause);
      } else if (notice.sequence >= group->arrived) {
        if (group->aborted.emplace(notice.sequence, cause).second) pass_on(*group, from, notice);
        discard_when_it_comes(*group, notice.sequence);
      } else {
        const auto waiting = std::ranges::find_if(group->waiting, [&](const auto& operation) {
          return operation->sequence() == notice.sequence;
        });
        if (waiting == group->waiting.end()) return;
        pass_on(*group, from, notice);
        (*waiting)->tell(cause);
        group->waiting.erase(waiting);
        discard_when_it_comes(*group, notice.sequence);
      }
      return;
    }
    case NoticeKind::kGroupFailure:
      if (!group->failure) pass_on(*group, from, notice);
      fail_group(*group, Error(notice.error, notice.text), false);
      return;
    case NoticeKind::kProbe:
      tell(*group, *group->rank_of(from),
           {NoticeKind::kReply, ErrorKind::kTimeout, 0, notice.sequence,
            describe_state(*group, notice.sequence)});
      return;
    case NoticeKind::kReply:
      for (const auto& operation : operations_) {
        if (&operation->group() != group.get() || operation->phase != Operation::Phase::kProbing ||
            operation->sequence() != notice.sequence) {
          continue;
        }
        const std::uint32_t rank = *group->rank_of(from);
        operation->answered[rank] = true;
        operation->answers[rank] = notice.text;
      }
      next_timer_ = clock_.now();
      return;
    case NoticeKind::kAsk: {
      const auto found = group->running.find(notice.sequence);
      const bool runs = found != group->running.end();
      // Who has failed it said so, or was told so by one who told everybody.
      if (group->failure || (runs ? found->second->cause().has_value()
                                  : stale_.has_collective(group->id(), notice.sequence))) {
        return;
      }
      tell(*group, *group->rank_of(from),
           {NoticeKind::kCall, ErrorKind::kMismatch, 0, notice.sequence,
            runs ? found->second->call() : "what has ended there"});
      return;
    }
    case NoticeKind::kCall:
      if (const auto found = group->running.find(notice.sequence); found != group->running.end()) {
        found->second->answer(*group->rank_of(from), notice.text);
      }
      return;
    case NoticeKind::kWithdraw:
      handle_withdrawal(*group, Withdrawal::unpacked(notice.sequence));
      return;
    case NoticeKind::kGoodbye:
      return;
  }
}

/// For a group that is not made here yet, or is gone.
void Engine::handle_early(PeerId from, const Notice& notice) {
  const transport::TimePoint now = clock_.now();
  const bool gone = find_group(notice.group) == nullptr;  // else the sender means an earlier one
  std::erase_if(early_, [&](const Early& early) { return now - early.came >= kEarlyBound; });
  switch (notice.kind) {
    case NoticeKind::kProbe:
      control_.send(from, {NoticeKind::kReply, ErrorKind::kTimeout, notice.answer_group,
                           notice.sequence, "has destroyed the group or not made it yet"});
      return;
    // What it is about may have come, and its sender may wait for somebody to take it.
    case NoticeKind::kAbort:
      if (gone) stale_.add_collective(notice.group, notice.sequence, now);
      break;
    case NoticeKind::kGroupFailure:
      if (gone) stale_.add_group(notice.group, now);
      break;
    case NoticeKind::kWithdraw: {
      const Withdrawal withdrawal = Withdrawal::unpacked(notice.sequence);
      const transport::Tag tag =
          transport::payload_tag(notice.group, withdrawal.source, withdrawal.serial);
      if (gone) stale_.add_payload(notice.group, tag, now);
      break;
    }
    case NoticeKind::kReply:
    case NoticeKind::kGoodbye:
    case NoticeKind::kAsk:
    case NoticeKind::kCall:
      return;
  }
  next_timer_ = std::min(next_timer_, stale_.next_sweep());
  const bool joining = gone && ids_.taken(notice.group);
  if (joining && early_.size() < transport::kMaxGroups) early_.push_back({from, notice, now});
}

void Engine::withdraw(Group& group, const Transfer& transfer) {
  const Withdrawal withdrawal{group.rank(), transfer.serial};
  if (transfer.to == group.rank()) {
    handle_withdrawal(group, withdrawal);
  } else if (!has_left(group.peer(transfer.to))) {
    tell(group, transfer.to,
         {NoticeKind::kWithdraw, ErrorKind::kAborted, 0, withdrawal.packed(), {}});
  }
}

void Engine::handle_withdrawal(Group& group, const Withdrawal& withdrawal) {
  const transport::Tag tag =
      transport::payload_tag(group.id(), withdrawal.source, withdrawal.serial);
  // Under way to its receiver, the message gets there: its sender keeps the memory until then.
  const bool taken = std::ranges::any_of(
      operations_, [&](const auto& operation) { return operation->receives(tag); });
  // A receive that failed has taken the header.
  if (taken || stale_.has_payload(group.id(), tag)) return;
  group.withdrawn.emplace(withdrawal.source, withdrawal.serial);
  stale_.add_payload(group.id(), tag, clock_.now());
  next_timer_ = std::min(next_timer_, stale_.next_sweep());
}

void Engine::ask_questions() {
  for (Operation* const operation : std::exchange(asking_, {})) {
    for (const std::uint32_t rank : operation->take_questions()) {
      tell(operation->group(), rank,
           {NoticeKind::kAsk, ErrorKind::kMismatch, 0, operation->sequence(), {}});
    }
  }
}

void Engine::handle_goodbye(PeerId from) {
  departed_.insert(from);
  transport_.expect_departure(from);
  for (const auto& operation : operations_) {
    if (const auto rank = operation->group().rank_of(from)) operation->sender_left(*rank);
  }
  // It waits for ours. Where we have no endpoint to it, our end would not be seen over shared
  // memory.
  if (!transport_.connected(from)) say_goodbye_to(from);
}

bool Engine::fail_deserted() {
  if (deserted_.empty()) return false;
  const auto deserted = std::exchange(deserted_, {});
  for (const auto& [operation, rank] : deserted) {
    if (operation->cause()) continue;
    Group& group = operation->group();
    const Error cause(ErrorKind::kPeerFailed,
                      fmt::format("{}: {} has left (it destroyed its process group or exited)",
                                  operation->label(), group.member(rank)));
    operation->fail(cause);
    if (operation->spec().point_to_point) continue;
    tell_members(group, {NoticeKind::kAbort, cause.kind(), 0, operation->sequence(), cause.what()});
  }
  return true;
}

/// Its senders may wait for somebody to take them.
void Engine::discard_when_it_comes(const Group& group, std::uint64_t sequence) {
  stale_.add_collective(group.id(), sequence, clock_.now());
  next_timer_ = std::min(next_timer_, stale_.next_sweep());
}

}  // namespace gtopk::engine
