#include "src/engine/probes.hpp"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/transport/base/log.hpp"

namespace gtopk::engine {
namespace {

using transport::PeerId;

/// How a reply to a probe begins when the rank is the one that the others wait for.
constexpr std::string_view kNotCalled = "has not called it";
/// Other ranks' states in the text of a time-out.
constexpr std::size_t kStatesShown = 4;

double seconds(transport::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::string Probes::describe_state(const Group& group, std::uint64_t sequence) {
  if (group.failure) {
    return fmt::format("has given up: {}", group.failure->what());
  }
  if (sequence >= group.arrived()) {
    return fmt::format("{}; its last was {}", kNotCalled, group.last_operation());
  }
  const Operation* const found = Scheduler::running(group, sequence);
  if (found == nullptr) {
    return "has finished it or not started it";
  }
  const Operation& operation = *found;
  if (operation.gate_waiter) {
    return fmt::format("is in {} #{}, waiting at its gate for the rest of the step",
                       operation.spec().name, sequence);
  }
  const std::vector<std::uint32_t> awaited = operation.waits_for(false);
  if (awaited.empty()) {
    return fmt::format("is in {} #{}", operation.spec().name, sequence);
  }
  return fmt::format("is in {} #{}, waiting for rank {}", operation.spec().name, sequence,
                     fmt::join(awaited, ", "));
}

void Probes::probe(Operation& operation) {
  Group& group = operation.group();
  operation.state = Operation::State::kProbing;
  operation.waited = clock_.now() - operation.called;
  operation.deadline = clock_.now() + kProbeGrace;
  operation.answered.assign(group.size(), false);
  operation.answers.assign(group.size(), {});
  operation.answered[group.rank()] = true;
  if (!operation.spec().point_to_point()) {
    operation.answers[group.rank()] = describe_state(group, operation.sequence());
  }
  std::vector<std::uint32_t> asked;
  if (operation.spec().point_to_point()) {
    asked = operation.waits_for(false);
    const auto sends = operation.waits_for(true);
    asked.insert(asked.end(), sends.begin(), sends.end());
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      operation.answered[rank] = rank == group.rank() || !std::ranges::count(asked, rank);
    }
  } else {
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      asked.push_back(rank);
    }
  }
  for (const std::uint32_t rank : asked) {
    if (rank == group.rank()) {
      continue;
    }
    membership_.tell(group, rank,
                     {NoticeKind::kProbe, ErrorKind::kTimeout, 0, operation.sequence(), {}});
  }
}

void Probes::conclude(Operation& operation) {
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
  if (operation.spec().point_to_point()) {
    const bool of_any = operation.waits_for(false).empty() && operation.waits_for(true).empty();
    const std::string why = of_any ? std::string("no rank has sent a match")
                            : silent.empty()
                                ? std::string("the other side is alive and has no match")
                                : fmt::format("{} does not answer", fmt::join(silent, ", "));
    operation.fail(Error(ErrorKind::kTimeout, fmt::format("{}: timed out after {:.3g} s: {}",
                                                          operation.label(), waited, why)));
    return;
  }
  const std::string what = fmt::format("{} #{} timed out after {:.3g} s", operation.spec().name,
                                       operation.sequence(), waited);
  if (!silent.empty()) {
    failures_.fail_group(
        group,
        Error(ErrorKind::kPeerFailed,
              fmt::format("{}: {} does not answer (asked by rank {}, {:.3g} s ago)", what,
                          fmt::join(silent, ", "), group.rank(), seconds(kProbeGrace))),
        true);
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      if (!operation.answered[rank]) {
        transport_.give_up(group.peer(rank));
      }
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
  failures_.fail_group(
      group,
      Error(ErrorKind::kTimeout, fmt::format("{} on {}: every rank is alive: {}", what,
                                             group.member(group.rank()), fmt::join(states, "; "))),
      true);
}

void Probes::check_deadlines(transport::TimePoint now) {
  // Concluding may fail other operations of the list, but never shortens it.
  const auto& operations = scheduler_.operations();
  for (std::size_t at = 0; at < operations.size(); ++at) {
    Operation& operation = *operations[at];
    switch (operation.state) {
      case Operation::State::kWaiting:
        break;
      case Operation::State::kRunning:
        if (now >= operation.deadline && !operation.cause()) {
          probe(operation);
        }
        break;
      case Operation::State::kProbing:
        if (operation.cause()) {
          break;
        }
        if (now >= operation.deadline || std::ranges::all_of(operation.answered, std::identity{})) {
          conclude(operation);
        }
        break;
      case Operation::State::kLingering:
        if (now >= operation.deadline && !operation.quiet()) {
          check_lingering(operation, now);
        }
        break;
    }
  }
  for (const auto& group : groups_.all()) {
    check_waiting(*group, now);
  }
}

void Probes::begin_lingering(Operation& operation) {
  operation.deadline = clock_.now() + kLingerBound - kProbeGrace;
  scheduler_.wake_by(operation.deadline);
}

void Probes::answer(Group& group, PeerId from, std::uint64_t sequence) {
  membership_.tell(
      group, *group.rank_of(from),
      {NoticeKind::kReply, ErrorKind::kTimeout, 0, sequence, describe_state(group, sequence)});
}

void Probes::take_answer(const Group& group, PeerId from, const Notice& notice) {
  for (const auto& operation : scheduler_.operations()) {
    if (&operation->group() != &group || operation->state != Operation::State::kProbing ||
        operation->sequence() != notice.sequence) {
      continue;
    }
    const std::uint32_t rank = *group.rank_of(from);
    operation->answered[rank] = true;
    operation->answers[rank] = notice.text;
  }
  scheduler_.wake_by(clock_.now());
}

/// A rank that lives takes, or discards, the message sooner or later, having been told that it is
/// stale; one that is stopped or dead never does.
void Probes::check_lingering(Operation& operation, transport::TimePoint now) {
  Group& group = operation.group();
  const std::vector<std::uint32_t> ranks = operation.waits_for(true);
  if (!operation.asked) {
    operation.asked = now;
    operation.deadline = now + kProbeGrace;
    for (const std::uint32_t rank : ranks) {
      if (rank == group.rank() || membership_.has_left(group.peer(rank))) {
        continue;
      }
      membership_.tell(group, rank,
                       {NoticeKind::kProbe, ErrorKind::kTimeout, 0, operation.sequence(), {}});
    }
    return;
  }
  for (const std::uint32_t rank : ranks) {
    const PeerId peer = group.peer(rank);
    const bool answers = membership_.heard_since(peer, *operation.asked);
    if (rank == group.rank() || (answers && !membership_.has_left(peer))) {
      continue;
    }
    transport::log().warn("{}: closing the connection to {}, which does not take our message",
                          operation.label(), group.member(rank));
    transport_.give_up(peer);
  }
  operation.asked.reset();
  operation.deadline = now + kLingerBound - kProbeGrace;
}

void Probes::check_waiting(const Group& group, transport::TimePoint now) {
  // It waits for the oldest one that runs, whose own deadline may be far away: ask about that one.
  Operation* const oldest = Scheduler::oldest_running(group);
  if (oldest != nullptr && Scheduler::any_waits_too_long(group, now) &&
      oldest->state == Operation::State::kRunning && !oldest->cause()) {
    probe(*oldest);
  }
}

}  // namespace gtopk::engine
