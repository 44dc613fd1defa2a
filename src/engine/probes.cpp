#include "src/engine/probes.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/transport/base/log.hpp"

namespace gtopk::engine {
namespace {

using transport::PeerId;

/// The start of a probed rank's reply if the others wait for that rank.
constexpr std::string_view kNeverEntered = "never entered";
constexpr std::string_view kFinished = "has finished it";
/// The number of ranks per state that a timeout's text shows.
constexpr std::size_t kStatesShown = 4;
/// Used as the collective's number in the probe of a point-to-point message, which asks what the
/// rank is doing in general.
constexpr std::uint64_t kNoCollective = std::numeric_limits<std::uint64_t>::max();

std::uint64_t probed(const Operation& operation) {
  return operation.spec().point_to_point() ? kNoCollective : operation.sequence();
}

/// Describes an operation: "all_reduce #17, waiting for rank 3".
std::string describe(const Operation& operation) {
  std::string text = operation.title();
  if (operation.gate_waiter) {
    return text + ", waiting at its gate for the rest of the step";
  }
  if (operation.on_external_work()) {
    return text + ", waiting for its device";
  }
  const std::vector<std::uint32_t> awaited = operation.waits_for(false);
  if (!awaited.empty() && !operation.spec().point_to_point()) {
    text += fmt::format(", waiting for rank {}", fmt::join(awaited, ", "));
  }
  return text;
}

/// Ranks, and in words what each one is doing.
struct States {
  std::vector<std::uint32_t> ranks;
  std::vector<std::string> words;

  void add(std::uint32_t rank, std::string state) {
    ranks.push_back(rank);
    words.push_back(std::move(state));
  }
  /// Appends the first kStatesShown states, then the other ranks with what they have in common.
  void tell(std::vector<std::string>& texts, std::string_view in_common) const {
    const std::size_t shown = std::min(words.size(), kStatesShown);
    texts.insert(texts.end(), words.begin(), words.begin() + static_cast<std::ptrdiff_t>(shown));
    if (shown < words.size()) {
      texts.push_back(
          fmt::format("rank {} {}", fmt::join(std::span(ranks).subspan(shown), ", "), in_common));
    }
  }
};

double seconds(transport::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

/// Describes what this process is doing in this group, or else in another one, or else what it did
/// last.
std::string Probes::describe_place(const Group& group) const {
  if (const Operation* const oldest = Scheduler::oldest_running(group)) {
    return fmt::format("it is in {}", describe(*oldest));
  }
  for (const bool here : {true, false}) {
    for (const auto& operation : scheduler_.operations()) {
      if (operation->state == Operation::State::kLingering ||
          (&operation->group() == &group) != here) {
        continue;
      }
      return fmt::format("it is in {}", here ? describe(*operation) : operation->label());
    }
  }
  return group.last_operation().empty()
             ? std::string("it has called no collective of the group yet")
             : fmt::format("its last was {}, which has ended", group.last_operation());
}

std::string Probes::describe_state(const Group& group, std::uint64_t sequence) const {
  if (group.failure) {
    return fmt::format("has given up: {}", group.failure->what());
  }
  if (sequence == kNoCollective) {
    return describe_place(group);
  }
  if (sequence > group.arrived()) {
    return fmt::format("{}; {}", kNeverEntered, describe_place(group));
  }
  if (const Operation* const found = Scheduler::running(group, sequence)) {
    return fmt::format("is in {}", describe(*found));
  }
  return Scheduler::waits(group, sequence)
             ? fmt::format("has called it but not started it; {}", describe_place(group))
             : std::string(kFinished);
}

void Probes::receiver_left(Operation& operation, std::uint32_t rank) {
  if (operation.state == Operation::State::kRunning &&
      std::ranges::count(operation.waits_for(true), rank) != 0) {
    operation.deadline = std::min(operation.deadline, clock_.now() + kDepartureGrace);
    scheduler_.wake_by(operation.deadline);
  }
}

void Probes::act_on_deadline(Operation& operation, transport::TimePoint now) {
  const Group& group = operation.group();
  for (const std::uint32_t rank : operation.waits_for(true)) {
    if (membership_.has_left(group.peer(rank))) {
      failures_.is_deserted(operation, rank);
      return;
    }
  }
  const transport::TimePoint own = operation.called + operation.spec().timeout;
  if (now < own) {
    operation.deadline = own;  // the rank that left has received its message after all
    return;
  }
  probe(operation);
}

void Probes::probe(Operation& operation) {
  Group& group = operation.group();
  operation.state = Operation::State::kProbing;
  operation.waited = clock_.now() - operation.called;
  operation.probed = clock_.now();
  operation.took = operation.takes;
  operation.deadline = operation.probed + kProbeGrace;
  operation.answered.assign(group.size(), false);
  operation.answers.assign(group.size(), {});
  operation.answered[group.rank()] = true;
  if (!operation.spec().point_to_point()) {
    operation.answers[group.rank()] = describe_state(group, operation.sequence());
  }
  std::vector<std::uint32_t> asked;
  if (operation.spec().point_to_point()) {
    asked = operation.waits_for();
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      operation.answered[rank] = rank == group.rank() || !std::ranges::count(asked, rank);
    }
  } else {
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      asked.push_back(rank);
    }
  }
  for (const std::uint32_t rank : asked) {
    if (rank == group.rank() ||
        (operation.spec().point_to_point() && !asked_.emplace(&group, rank).second)) {
      continue;
    }
    membership_.tell(group, rank,
                     {NoticeKind::kProbe, ErrorKind::kTimeout, 0, probed(operation), {}});
  }
}

void Probes::conclude_transfer(Operation& operation, const std::vector<std::string>& silent,
                               const std::vector<std::string>& alive) {
  if (operation.takes && !operation.took && silent.empty()) {
    // A message has arrived meanwhile. Its sender may rely on it, and has as much time as any
    // other.
    operation.state = Operation::State::kRunning;
    operation.deadline = clock_.now() + operation.spec().timeout;
    return;
  }
  const std::string why =
      operation.waits_for().empty() ? std::string("no rank has sent a matching message")
      : silent.empty()              ? fmt::format("{}", fmt::join(alive, "; "))
                                    : fmt::format("{} does not answer", fmt::join(silent, ", "));
  operation.fail(
      Error(ErrorKind::kTimeout, fmt::format("{}: timed out after {:.3g} s: {}", operation.label(),
                                             seconds(operation.waited), why)));
}

void Probes::conclude(Operation& operation) {
  Group& group = operation.group();
  std::vector<std::string> silent;
  States states;
  States never_entered;
  States finished;
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (!operation.answered[rank]) {
      const PeerId peer = group.peer(rank);
      const std::string unreachable =
          transport_.awaits_address(peer) ? "its address is still being looked up"
          : membership_.has_refused(peer)
              ? "its notices prove another secret than this rank's, or only one of the two has "
                "any: set the same GTOPK_SECRET on all ranks"
              : transport_.why_unreachable(peer);
      silent.push_back(unreachable.empty()
                           ? group.member(rank)
                           : fmt::format("{} ({})", group.member(rank), unreachable));
    } else if (!operation.answers[rank].empty()) {
      std::string_view answer = operation.answers[rank];
      if (operation.spec().point_to_point()) {
        states.add(rank, fmt::format("{} is alive and {}; {}", group.member(rank),
                                     operation.takes ? "its message has not fully arrived"
                                                     : "has made no matching call",
                                     answer));
      } else if (answer.starts_with(kNeverEntered)) {
        answer.remove_prefix(kNeverEntered.size());
        never_entered.add(rank, fmt::format("{} {} {}{}", group.member(rank), kNeverEntered,
                                            operation.title(), answer));
      } else if (answer == kFinished) {
        finished.add(rank, fmt::format("{} {}", group.member(rank), answer));
      } else {
        states.add(rank, fmt::format("{} {}", group.member(rank), answer));
      }
    }
  }
  if (operation.spec().point_to_point()) {
    conclude_transfer(operation, silent, states.words);
    return;
  }
  const std::string what =
      fmt::format("{} timed out after {:.3g} s", operation.title(), seconds(operation.waited));
  if (!silent.empty()) {
    failures_.fail_group(
        group,
        Error(ErrorKind::kPeerFailed,
              fmt::format("{}: {} does not answer (asked by rank {}, {:.3g} s ago)", what,
                          fmt::join(silent, ", "), group.rank(),
                          seconds(std::min(clock_.now(), operation.deadline) - operation.probed))),
        true);
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      if (!operation.answered[rank]) {
        give_up(group.peer(rank));
      }
    }
    return;
  }
  // Ranks that never entered matter most, and ranks that have finished matter least; a notice has
  // limited space.
  std::vector<std::string> told;
  never_entered.tell(told, "never entered it either");
  states.tell(told, "has called it");
  finished.tell(told, kFinished);
  failures_.fail_group(
      group,
      Error(ErrorKind::kTimeout, fmt::format("{} on {}: every rank is alive: {}", what,
                                             group.member(group.rank()), fmt::join(told, "; "))),
      true);
}

void Probes::check_deadlines(transport::TimePoint now) {
  asked_.clear();
  // Ending a probe may fail other operations in the list, but never shortens it.
  for (const auto& each : scheduler_.operations()) {
    Operation& operation = *each;
    switch (operation.state) {
      case Operation::State::kWaiting:
        break;
      case Operation::State::kRunning:
        if (now >= operation.deadline && !operation.cause()) {
          act_on_deadline(operation, now);
        }
        break;
      case Operation::State::kProbing:
        if (operation.cause()) {
          break;
        }
        if (is_over(operation, now)) {
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

bool Probes::is_over(Operation& operation, transport::TimePoint now) {
  const Group& group = operation.group();
  bool some_silent = false;
  bool some_new = false;
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (!operation.answered[rank]) {
      const PeerId peer = group.peer(rank);
      some_silent = true;
      some_new =
          some_new || (membership_.in_doubt(peer) && transport_.why_unreachable(peer).empty());
    }
  }
  if (some_new && now >= operation.deadline) {
    operation.deadline = operation.probed + kLongestProbe;
  }
  return !some_silent || now >= operation.deadline;
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
        probed(*operation) != notice.sequence) {
      continue;
    }
    const std::uint32_t rank = *group.rank_of(from);
    operation->answered[rank] = true;
    operation->answers[rank] = notice.text;
  }
  scheduler_.wake_by(clock_.now());
}

void Probes::give_up(PeerId peer) {
  membership_.give_up(peer);  // comes first, so that requests that end now are not in doubt
  flow_control_.drop_peer(peer);
}

/// A living rank that was told that a message is stale eventually receives or discards it, and
/// sends the rest of any message that has begun to arrive. A stopped or dead rank never does.
void Probes::check_lingering(Operation& operation, transport::TimePoint now) {
  Group& group = operation.group();
  const std::vector<std::uint32_t> ranks = operation.waits_for();
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
    transport::log().warn(
        "{}: closing the connection to {}, which neither answers nor goes on with a message",
        operation.label(), group.member(rank));
    give_up(peer);
  }
  operation.asked.reset();
  operation.deadline = now + kLingerBound - kProbeGrace;
}

void Probes::check_waiting(Group& group, transport::TimePoint now) {
  Scheduler::give_up_late_inputs(group, now);
  // The group waits for its oldest running operation, whose own deadline may be far away, so ask
  // about that one.
  Operation* const oldest = Scheduler::oldest_running(group);
  if (oldest != nullptr && Scheduler::any_waits_too_long(group, now) &&
      oldest->state == Operation::State::kRunning && !oldest->cause()) {
    probe(*oldest);
  }
}

}  // namespace gtopk::engine
