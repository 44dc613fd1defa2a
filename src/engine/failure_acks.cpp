#include "src/engine/failure_acks.hpp"

#include <algorithm>
#include <limits>

namespace gtopk::engine {
namespace {

using transport::PeerId;

/// Used as the collective's number if the whole group has failed.
constexpr std::uint64_t kWholeGroup = std::numeric_limits<std::uint64_t>::max();

std::uint64_t number_of(const Notice& notice) {
  return notice.kind == NoticeKind::kGroupFailure ? kWholeGroup : notice.sequence;
}

}  // namespace

FailureAcks::Failure* FailureAcks::find(std::uint32_t group, std::uint64_t number) {
  const auto found = std::ranges::find_if(failures_, [&](const Failure& failure) {
    return failure.group == group && failure.number == number;
  });
  return found == failures_.end() ? nullptr : &*found;
}

FailureAcks::Failure& FailureAcks::found_or_made(std::uint32_t group, std::uint64_t number) {
  if (Failure* const failure = find(group, number)) {
    return *failure;
  }
  return failures_.emplace_back(Failure{.group = group,
                                        .number = number,
                                        .since = clock_.now(),
                                        .told = {},
                                        .unanswered = {},
                                        .tellers = {}});
}

void FailureAcks::told(const Group& group, const Notice& notice) {
  Failure& failure = found_or_made(group.id(), number_of(notice));
  failure.told_here = true;
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    if (rank != group.rank() && !membership_.has_left(peer)) {
      failure.told.emplace(peer, group.id_at(rank));
      if (!failure.tellers.contains(peer)) {
        failure.unanswered.insert(peer);
      }
    }
  }
}

void FailureAcks::heard(PeerId from, const Notice& notice) {
  const std::uint64_t number = number_of(notice);
  Failure& failure = found_or_made(notice.group, number);
  failure.tellers.insert(from);
  failure.unanswered.erase(from);
  if (!failure.told.contains(from)) {  // otherwise this notice was the answer
    membership_.tell_peer(
        from, {NoticeKind::kHeard, notice.error, notice.answer_group, number, {}, notice.group});
  }
}

void FailureAcks::handle(PeerId from, const Notice& notice) {
  Failure* const failure = find(notice.group, notice.sequence);
  if (failure == nullptr) {
    return;
  }
  if (notice.kind == NoticeKind::kAllHeard) {
    failure->known = true;
  } else {
    failure->unanswered.erase(from);
  }
}

void FailureAcks::forget_group(std::uint32_t id) {
  std::erase_if(failures_, [&](const Failure& failure) { return failure.group == id; });
}

void FailureAcks::settle() {
  if (failures_.empty()) {
    return;
  }
  for (Failure& failure : failures_) {
    settle(failure);
  }
  const transport::TimePoint now = clock_.now();
  std::erase_if(failures_, [&](const Failure& failure) { return now - failure.since >= kBound; });
}

void FailureAcks::settle(Failure& failure) {
  if (failure.known) {
    return;
  }
  const auto gone = [&](PeerId peer) {
    return membership_.has_left(peer) || !transport_.connected(peer);
  };
  if (!failure.told_here) {
    // A teller that is gone has told all members or has waited in vain, so its kAllHeard will not
    // come.
    failure.known = std::ranges::any_of(failure.tellers, gone);
    return;
  }
  std::erase_if(failure.unanswered, gone);
  if (!failure.unanswered.empty()) {
    return;
  }
  failure.known = true;
  for (const auto& [peer, group] : failure.told) {
    if (!gone(peer)) {
      membership_.tell_peer(
          peer,
          {NoticeKind::kAllHeard, ErrorKind::kAborted, group, failure.number, {}, failure.group});
    }
  }
}

bool FailureAcks::all_have_heard() const {
  return std::ranges::all_of(failures_, [&](const Failure& failure) {
    return failure.known || clock_.now() - failure.since >= kBound;
  });
}

}  // namespace gtopk::engine
