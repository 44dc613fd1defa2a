// Engine: what happens when a rank is gone, silent, late or calls something else. Every rank that
// waits gets an error with the same cause, and the network is cleared of what the failed operation
// left in it.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/engine.hpp"
#include "transport/base/log.hpp"

namespace gtopk::engine {
namespace {

using transport::PeerId;

/// Stale messages are looked for this often, and this long.
constexpr transport::Duration kSweepPeriod = std::chrono::milliseconds(1);
constexpr transport::Duration kSweepBound = std::chrono::seconds(60);
/// Sequence numbers have 16 bits in a tag: stop looking well before one comes round again.
constexpr std::uint64_t kSweepSequences = 32768;
constexpr transport::Duration kIdleTimer = std::chrono::seconds(1);
/// How a reply to a probe begins when the rank is the one that the others wait for.
constexpr std::string_view kNotCalled = "has not called it";
/// Other ranks' states in the text of a time-out.
constexpr std::size_t kStatesShown = 4;

double seconds(transport::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::shared_ptr<Group> Engine::find_group(std::uint32_t id) const {
  for (const auto& group : groups_) {
    if (group->id() == id) return group;
  }
  return nullptr;
}

void Engine::notify(const Group& group, std::uint32_t rank, Notice notice) {
  notice.group = group.id_at(rank);
  notice.answer_group = group.id();
  control_.send(group.peer(rank), notice);
}

void Engine::tell_members(Group& group, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    if (rank == group.rank() || departed_.contains(peer)) continue;
    notify(group, rank, notice);
    group.counters.notices_sent.fetch_add(1, std::memory_order_relaxed);
  }
}

// This rank may leave as soon as it has failed, and its goodbye would reach those that it is
// connected to before the notice of the one who saw the failure: they would take it for the cause.
void Engine::pass_on(Group& group, PeerId from, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    if (rank == group.rank() || peer == from || departed_.contains(peer)) continue;
    if (!transport_.connected(peer)) continue;
    notify(group, rank, notice);
    group.counters.notices_sent.fetch_add(1, std::memory_order_relaxed);
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
  if (const auto held = find_group(group.id())) mark_stale(held, 0, true);
}

bool Engine::handle_failures() {
  const std::vector<transport::PeerFailure> failures = transport_.take_failures();
  for (const transport::PeerFailure& failure : failures) {
    departed_.try_emplace(failure.peer, 0);
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
  if (notice.kind == NoticeKind::kGoodbye) {
    handle_goodbye(from, notice.sequence);
    return;
  }
  const std::shared_ptr<Group> group = find_group(notice.group);
  if (group == nullptr || !group->rank_of(from)) {
    if (notice.kind == NoticeKind::kProbe) {
      control_.send(from, {NoticeKind::kReply, ErrorKind::kTimeout, notice.answer_group,
                           notice.sequence, "has destroyed the group or not made it yet"});
    }
    const bool kept = notice.kind == NoticeKind::kAbort || notice.kind == NoticeKind::kGroupFailure;
    if (kept && ids_.taken(notice.group) && early_.size() < transport::kMaxGroups)
      early_.emplace_back(from, notice);
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
        mark_stale(group, notice.sequence, false);  // its senders wait for somebody to take them
      } else {
        const auto waiting = std::ranges::find_if(group->waiting, [&](const auto& operation) {
          return operation->sequence() == notice.sequence;
        });
        if (waiting == group->waiting.end()) return;
        pass_on(*group, from, notice);
        (*waiting)->tell(cause);
        group->waiting.erase(waiting);
        mark_stale(group, notice.sequence, false);
      }
      return;
    }
    case NoticeKind::kGroupFailure:
      if (!group->failure) pass_on(*group, from, notice);
      fail_group(*group, Error(notice.error, notice.text), false);
      return;
    case NoticeKind::kProbe:
      notify(*group, *group->rank_of(from),
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
      if (group->failure ||
          (runs ? found->second->cause().has_value() : is_stale(*group, notice.sequence))) {
        return;
      }
      notify(*group, *group->rank_of(from),
             {NoticeKind::kCall, ErrorKind::kMismatch, 0, notice.sequence,
              runs ? found->second->call() : "what has ended there"});
      return;
    }
    case NoticeKind::kCall:
      if (const auto found = group->running.find(notice.sequence); found != group->running.end()) {
        found->second->answer(*group->rank_of(from), notice.text);
      }
      return;
    case NoticeKind::kGoodbye:
      return;
  }
}

void Engine::ask_questions() {
  for (Operation* const operation : std::exchange(asking_, {})) {
    const Group& group = operation->group();
    for (const std::uint32_t rank : operation->take_questions()) {
      notify(group, rank, {NoticeKind::kAsk, ErrorKind::kMismatch, 0, operation->sequence(), {}});
    }
  }
}

void Engine::handle_goodbye(PeerId from, std::uint64_t messages) {
  departed_[from] = messages;
  transport_.expect_departure(from);
  // It waits for ours. Where we have no endpoint to it, our end would not be seen over shared
  // memory.
  if (!transport_.connected(from)) say_goodbye_to(from);
}

void Engine::fail_what_awaits_departed() {
  for (const auto& [from, messages] : departed_) {
    // The goodbye may have overtaken messages; the endpoint's end decides when they never come.
    if (traffic_[from].received < messages) continue;
    for (const auto& operation : operations_) {
      const std::shared_ptr<Group>& group = operation->shared_group();
      const auto rank = group->rank_of(from);
      if (!rank || operation->cause()) continue;
      const std::vector<std::uint32_t> awaited = operation->waits_for(false);
      if (!std::ranges::binary_search(awaited, *rank)) continue;
      const Error cause(ErrorKind::kPeerFailed,
                        fmt::format("{}: {} has left (it destroyed its process group or exited)",
                                    operation->label(), group->member(*rank)));
      operation->fail(cause);
      if (operation->spec().point_to_point) continue;
      tell_members(*group,
                   {NoticeKind::kAbort, cause.kind(), 0, operation->sequence(), cause.what()});
    }
  }
}

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
  const Group& group = operation.group();
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
      operation.answered[rank] = !std::ranges::count(asked, rank);
    }
  } else {
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) asked.push_back(rank);
  }
  for (const std::uint32_t rank : asked) {
    if (rank == group.rank()) continue;
    notify(group, rank, {NoticeKind::kProbe, ErrorKind::kTimeout, 0, operation.sequence(), {}});
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
        if (now < operation.deadline || operation.quiet()) break;
        for (const std::uint32_t rank : operation.waits_for(true)) {
          transport::log().warn("{}: closing the connection to {}, which does not take our message",
                                operation.label(), operation.group().member(rank));
          transport_.give_up(operation.group().peer(rank));
        }
        operation.deadline = now + kLingerBound;
        break;
    }
  }
  for (const auto& group : groups_) check_waiting(*group, now);
  sweep_stale();
  next_timer_ = now + (stale_.empty() ? kIdleTimer : kSweepPeriod);
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

void Engine::check_waiting(const Group& group, transport::TimePoint now) {
  const bool late = std::ranges::any_of(
      group.waiting, [&](const auto& operation) { return now >= operation->deadline; });
  if (!late || group.running.empty()) return;
  // It waits for the oldest one that runs, whose own deadline may be far away: ask about that one.
  Operation& oldest = *group.running.begin()->second;
  if (oldest.phase == Operation::Phase::kRunning && !oldest.cause()) probe(oldest);
}

bool Engine::is_stale(const Group& group, std::uint64_t sequence) const {
  return std::ranges::any_of(stale_, [&](const Stale& stale) {
    return stale.group.get() == &group && (stale.whole_group || stale.sequence == sequence);
  });
}

void Engine::mark_stale(const std::shared_ptr<Group>& group, std::uint64_t sequence,
                        bool whole_group) {
  if (group == nullptr) return;
  if (!whole_group && is_stale(*group, sequence)) return;
  stale_.push_back({group, sequence, whole_group, clock_.now() + kSweepBound});
  next_timer_ = std::min(next_timer_, clock_.now());
}

void Engine::sweep_stale() {
  const transport::TimePoint now = clock_.now();
  std::erase_if(stale_, [&](const Stale& stale) {
    return now >= stale.until ||
           (!stale.whole_group && stale.group->arrived > stale.sequence + kSweepSequences);
  });
  for (const Stale& stale : stale_) {
    const transport::Tag tag = transport::collective_tag(stale.group->id(), 0, stale.sequence, 0);
    const transport::Tag mask =
        stale.whole_group ? transport::group_mask() : transport::any_source_mask();
    transport_.discard(tag, mask);
  }
}

}  // namespace gtopk::engine
