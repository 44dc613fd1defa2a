// Engine: what is found out by the clock: operations that are late, ranks that do not answer, and
// messages that nobody takes.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/engine.hpp"
#include "transport/base/log.hpp"

namespace gtopk::engine {
namespace {

using transport::PeerId;

constexpr transport::Duration kIdleTimer = std::chrono::seconds(1);
/// How a reply to a probe begins when the rank is the one that the others wait for.
constexpr std::string_view kNotCalled = "has not called it";
/// Other ranks' states in the text of a time-out.
constexpr std::size_t kStatesShown = 4;

double seconds(transport::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::string Engine::describe_state(const Group& group, std::uint64_t sequence) const {
  if (group.failure) return fmt::format("has given up: {}", group.failure->what());
  if (sequence >= group.arrived) {
    return fmt::format("{}; its last was {}", kNotCalled, group.last_operation());
  }
  const auto found = group.running.find(sequence);
  if (found == group.running.end()) return "has finished it or not started it";
  const Operation& operation = *found->second;
  const std::vector<std::uint32_t> awaited = operation.waits_for(false);
  if (awaited.empty()) return fmt::format("is in {} #{}", operation.spec().name, sequence);
  return fmt::format("is in {} #{}, waiting for rank {}", operation.spec().name, sequence,
                     fmt::join(awaited, ", "));
}

void Engine::probe(Operation& operation) {
  Group& group = operation.group();
  operation.phase = Operation::Phase::kProbing;
  operation.waited = clock_.now() - operation.called;
  operation.deadline = clock_.now() + kProbeGrace;
  operation.answered.assign(group.size(), false);
  operation.answers.assign(group.size(), {});
  operation.answered[group.rank()] = true;
  if (!operation.spec().point_to_point) {
    operation.answers[group.rank()] = describe_state(group, operation.sequence());
  }
  std::vector<std::uint32_t> asked;
  if (operation.spec().point_to_point) {
    asked = operation.waits_for(false);
    const auto sends = operation.waits_for(true);
    asked.insert(asked.end(), sends.begin(), sends.end());
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      operation.answered[rank] = rank == group.rank() || !std::ranges::count(asked, rank);
    }
  } else {
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) asked.push_back(rank);
  }
  for (const std::uint32_t rank : asked) {
    if (rank == group.rank()) continue;
    tell(group, rank, {NoticeKind::kProbe, ErrorKind::kTimeout, 0, operation.sequence(), {}});
  }
}

void Engine::conclude(Operation& operation) {
  Group& group = operation.group();
  std::vector<std::string> silent;
  std::vector<std::string> states;
  std::vector<std::string> not_called;
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (!operation.answered[rank]) {
      const std::string unreachable = transport_.why_unreachable(group.peer(rank));
      silent.push_back(unreachable.empty()
                           ? group.member(rank)
                           : fmt::format("{} ({})", group.member(rank), unreachable));
    } else if (!operation.answers[rank].empty()) {
      auto& kind = operation.answers[rank].starts_with(kNotCalled) ? not_called : states;
      kind.push_back(fmt::format("{} {}", group.member(rank), operation.answers[rank]));
    }
  }
  const double waited = seconds(operation.waited);
  if (operation.spec().point_to_point) {
    const std::string why = silent.empty()
                                ? std::string("the other side is alive and has no match")
                                : fmt::format("{} does not answer", fmt::join(silent, ", "));
    operation.fail(Error(ErrorKind::kTimeout, fmt::format("{}: timed out after {:.3g} s: {}",
                                                          operation.label(), waited, why)));
    return;
  }
  const std::string what = fmt::format("{} #{} timed out after {:.3g} s", operation.spec().name,
                                       operation.sequence(), waited);
  if (!silent.empty()) {
    fail_group(group,
               Error(ErrorKind::kPeerFailed,
                     fmt::format("{}: {} does not answer (asked by rank {}, {:.3g} s ago)", what,
                                 fmt::join(silent, ", "), group.rank(), seconds(kProbeGrace))),
               true);
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      if (!operation.answered[rank]) transport_.give_up(group.peer(rank));
    }
    return;
  }
  // Who has not called is what matters, and a notice holds only so much.
  if (states.size() > kStatesShown) {
    const std::size_t more = states.size() - kStatesShown;
    states.resize(kStatesShown);
    states.push_back(fmt::format("and {} more that have called it", more));
  }
  states.insert(states.begin(), not_called.begin(), not_called.end());
  fail_group(
      group,
      Error(ErrorKind::kTimeout, fmt::format("{} on {}: every rank is alive: {}", what,
                                             group.member(group.rank()), fmt::join(states, "; "))),
      true);
}

void Engine::check_timers() {
  const transport::TimePoint now = clock_.now();
  // Concluding may fail other operations of the list, but never shortens it.
  for (std::size_t at = 0; at < operations_.size(); ++at) {
    Operation& operation = *operations_[at];
    switch (operation.phase) {
      case Operation::Phase::kWaiting:
        break;
      case Operation::Phase::kRunning:
        if (now >= operation.deadline && !operation.cause()) probe(operation);
        break;
      case Operation::Phase::kProbing:
        if (operation.cause()) break;
        if (now >= operation.deadline || std::ranges::all_of(operation.answered, std::identity{})) {
          conclude(operation);
        }
        break;
      case Operation::Phase::kLingering:
        if (now >= operation.deadline && !operation.quiet()) check_lingering(operation, now);
        break;
    }
  }
  for (const auto& group : groups_) check_waiting(*group, now);
  stale_.sweep(now, [this](std::uint32_t id) {
    const std::shared_ptr<Group> group = find_group(id);
    return group == nullptr ? 0 : group->arrived;
  });
  next_timer_ = std::min(now + kIdleTimer, stale_.next_sweep());
  for (const auto& group : groups_) {
    for (const auto& operation : group->waiting) {
      if (operation->deadline > now) next_timer_ = std::min(next_timer_, operation->deadline);
    }
  }
  for (const auto& operation : operations_) {
    if (operation->cause() && operation->phase != Operation::Phase::kLingering) continue;
    next_timer_ = std::min(next_timer_, std::max(operation->deadline, now));
  }
}

/// A rank that lives takes, or discards, the message sooner or later, having been told that it is
/// stale; one that is stopped or dead never does.
void Engine::check_lingering(Operation& operation, transport::TimePoint now) {
  Group& group = operation.group();
  const std::vector<std::uint32_t> ranks = operation.waits_for(true);
  if (!operation.asked) {
    operation.asked = now;
    operation.deadline = now + kProbeGrace;
    for (const std::uint32_t rank : ranks) {
      if (rank == group.rank() || has_left(group.peer(rank))) continue;
      tell(group, rank, {NoticeKind::kProbe, ErrorKind::kTimeout, 0, operation.sequence(), {}});
    }
    return;
  }
  for (const std::uint32_t rank : ranks) {
    const PeerId peer = group.peer(rank);
    const auto heard = heard_.find(peer);
    const bool answers = heard != heard_.end() && heard->second >= *operation.asked;
    if (rank == group.rank() || (answers && !has_left(peer))) continue;
    transport::log().warn("{}: closing the connection to {}, which does not take our message",
                          operation.label(), group.member(rank));
    transport_.give_up(peer);
  }
  operation.asked.reset();
  operation.deadline = now + kLingerBound - kProbeGrace;
}

void Engine::check_waiting(const Group& group, transport::TimePoint now) {
  const bool late = std::ranges::any_of(
      group.waiting, [&](const auto& operation) { return now >= operation->deadline; });
  if (!late || group.running.empty()) return;
  // It waits for the oldest one that runs, whose own deadline may be far away: ask about that one.
  Operation& oldest = *group.running.begin()->second;
  if (oldest.phase == Operation::Phase::kRunning && !oldest.cause()) probe(oldest);
}

}  // namespace gtopk::engine
