#include "src/engine/scheduler.hpp"

#include <malloc.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "src/transport/base/log.hpp"

namespace gtopk::engine {
namespace {

/// How often timers are checked while nothing is due.
constexpr transport::Duration kIdleTimer = std::chrono::seconds(1);

/// The number of entries of a queue, and nodes of a list, that are kept for reuse.
constexpr std::size_t kKeptEntries = 1024;
constexpr std::size_t kKeptNodes = 64;
/// After this many operations at once, their memory is returned to the kernel, because malloc()
/// keeps all memory below a block that is still in use. That takes milliseconds, so it must be
/// rare.
constexpr std::size_t kBurst = 4096;

/// Empties a queue, and frees memory that only a burst needed.
template <class Entry>
void empty(std::vector<Entry>& queue) {
  queue.clear();
  if (queue.capacity() > kKeptEntries) {
    queue.shrink_to_fit();
  }
}

/// Returns "; it was waiting for rank 3 (host b, pid 17)", or an empty string.
std::string waited_for(const Operation& operation) {
  const Group& group = operation.group();
  std::string text;
  for (const std::uint32_t rank : operation.waits_for(false)) {
    text += fmt::format("{}{}", text.empty() ? "; it was waiting for " : ", ", group.member(rank));
  }
  return text;
}

}  // namespace

Scheduler::~Scheduler() {
  const auto end = [](Operation& operation) {
    operation.tell(
        Error(ErrorKind::kAborted, fmt::format("{}: the engine has ended", operation.label())));
  };
  for (const auto& operation : operations_) {
    end(*operation);
  }
  for (const auto& group : groups_.all()) {
    for (const auto& operation : group->waiting_) {
      end(*operation);
    }
    for (const auto& [operation, input] : group->held_) {
      end(*operation);
    }
    group->inputs_.clear();
    group->held_.clear();
    group->waiting_.clear();  // groups may outlive the engine, operations must not
  }
  operations_.clear();  // ending one operation may make another ready
}

std::uint64_t Scheduler::submit(const std::shared_ptr<Group>& group, OperationSpec spec,
                                std::shared_ptr<Gate> input) {
  const transport::TimePoint now = clock_.now();
  const std::lock_guard lock(mutex_);
  const std::uint64_t sequence = spec.point_to_point() ? 0 : ++group->called_;
  queue_.push_back({{}, {group, sequence, now, std::move(spec), std::move(input)}});
  return sequence;
}

void Scheduler::post(std::function<void()> work, const std::function<void()>& wake) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(work), {}});
  if (wake) {
    wake();
  }
}

bool Scheduler::has_queued() const {
  const std::lock_guard lock(mutex_);
  return !queue_.empty();
}

bool Scheduler::take_queue() {
  {
    const std::lock_guard lock(mutex_);
    taking_.swap(queue_);
  }
  for (Entry& entry : taking_) {
    if (entry.work) {
      entry.work();
      continue;
    }
    if (!entry.call.spec.point_to_point()) {
      entry.call.group->arrived_ = entry.call.sequence;
    }
    hooks_.called(entry.call);
  }
  const bool any = !taking_.empty();
  empty(taking_);
  return any;
}

void Scheduler::admit(std::unique_ptr<Operation> operation, std::unique_ptr<AwaitedInput> input) {
  Group& group = operation->group();
  if (operation->spec().point_to_point()) {
    if (input == nullptr) {
      start(std::move(operation));
    } else {
      group.held_.emplace_back(std::move(operation), std::move(input));
      input_came(group);
    }
    return;
  }
  if (input != nullptr) {
    group.inputs_.emplace(operation->sequence(), std::move(input));
  }
  group.waiting_.push_back(std::move(operation));
  start_waiting(group);
}

void Scheduler::input_came(Group& group) {
  // Start them in call order, because messages with one tag must be sent in that order.
  while (!group.held_.empty() && group.held_.front().second->decided()) {
    std::unique_ptr<Operation> operation = std::move(group.held_.front().first);
    group.held_.pop_front();
    start(std::move(operation));
  }
  start_waiting(group);
}

void Scheduler::give_up_late_inputs(Group& group, transport::TimePoint now) {
  for (const auto& [operation, input] : group.held_) {
    if (now >= operation->deadline) {
      input->give_up();
    }
  }
  if (!group.waiting_.empty() && now >= group.waiting_.front()->deadline) {
    const auto input = group.inputs_.find(group.waiting_.front()->sequence());
    if (input != group.inputs_.end()) {
      input->second->give_up();
    }
  }
}

void Scheduler::start_waiting(Group& group) {
  if (group.starting_) {
    return;  // called by an operation that ended at once: the loop below continues
  }
  group.starting_ = true;
  start_those_that_may(group);
  group.starting_ = false;
}

void Scheduler::start_those_that_may(Group& group) {
  while (!group.waiting_.empty() && group.running_.size() - group.at_gate_ < kMaxInFlight) {
    if (group.waiting_.front()->spec().ordering == Ordering::kAfterEarlier &&
        group.running_.size() != group.at_gate_) {
      return;
    }
    const auto input = group.inputs_.find(group.waiting_.front()->sequence());
    if (input != group.inputs_.end()) {
      if (!input->second->decided()) {
        return;
      }
      group.inputs_.erase(input);
    }
    std::unique_ptr<Operation> operation = std::move(group.waiting_.front());
    group.waiting_.pop_front();
    group.running_.emplace(operation->sequence(), operation.get());
    group.last_name_ = operation->spec().name;  // reuses its memory
    group.last_sequence_ = operation->sequence();
    start(std::move(operation));
  }
}

void Scheduler::start(std::unique_ptr<Operation> held) {
  Operation& operation = *held;
  if (spare_.empty()) {
    spare_.emplace_back();
  }
  spare_.front() = std::move(held);
  operations_.splice(operations_.end(), spare_, spare_.begin());
  operation.place = std::prev(operations_.end());
  ++operation.group().in_flight_;
  operation.start();
  if (operation.body_done()) {
    finish(operation);
  }
}

bool Scheduler::resume_ready() {
  if (ready_.empty()) {
    return false;
  }
  while (!ready_.empty()) {
    resuming_.swap(ready_);
    for (const Ready& ready : resuming_) {
      ready.handle.resume();
      if (ready.operation->body_done()) {
        finish(*ready.operation);
      }
    }
    empty(resuming_);
  }
  return true;
}

void Scheduler::finish(Operation& operation) {
  Group& group = operation.group();
  const std::shared_ptr<Group> held =
      operation.shared_group();  // the operation may be the group's last owner
  Outcome outcome;
  outcome.caused_here = !operation.cause().has_value();
  outcome.error = operation.take_result();
  operation.state = Operation::State::kLingering;
  lingering_.push_back(operation.place);
  --group.in_flight_;
  if (!operation.spec().point_to_point()) {
    group.running_.erase(operation.sequence());
  }
  hooks_.ended(operation, outcome);
  if (outcome.error) {
    transport::log().debug("{}", outcome.error->what());
  }
  operation.tell(outcome.error);
  start_waiting(group);
}

bool Scheduler::idle(const Group& group, bool but_for_gates) const {
  return group.waiting_.empty() && group.held_.empty() &&
         std::ranges::none_of(operations_, [&](const auto& operation) {
           return &operation->group() == &group && !(but_for_gates && operation->gate_waiter);
         });
}

void Scheduler::when_idle(const std::shared_ptr<Group>& group, std::function<void()> then) {
  if (idle(*group)) {
    then();
  } else {
    idle_waiters_.emplace_back(group, std::move(then));
  }
}

void Scheduler::forget_quiet() {
  most_operations_ = std::max(most_operations_, operations_.size());
  std::erase_if(lingering_, [&](const Operations::iterator place) {
    if (!(*place)->quiet()) {
      return false;
    }
    const std::unique_ptr<Operation> ended = std::move(*place);
    if (spare_.size() < kKeptNodes) {
      spare_.splice(spare_.end(), operations_, place);
    } else {
      operations_.erase(place);
    }
    return true;
  });
  if (most_operations_ >= kBurst && operations_.size() < kKeptNodes) {
    most_operations_ = 0;
    malloc_trim(0);
  }
  std::erase_if(idle_waiters_, [&](const auto& waiter) {
    if (!idle(*waiter.first)) {
      return false;
    }
    waiter.second();
    return true;
  });
}

Operation* Scheduler::running(const Group& group, std::uint64_t sequence) {
  const auto found = group.running_.find(sequence);
  return found == group.running_.end() ? nullptr : found->second;
}

Operation* Scheduler::oldest_running(const Group& group) {
  return group.running_.empty() ? nullptr : group.running_.begin()->second;
}

bool Scheduler::waits(const Group& group, std::uint64_t sequence) {
  return std::ranges::any_of(
      group.waiting_, [&](const auto& operation) { return operation->sequence() == sequence; });
}

bool Scheduler::any_waits_too_long(const Group& group, transport::TimePoint now) {
  return std::ranges::any_of(group.waiting_,
                             [&](const auto& operation) { return now >= operation->deadline; });
}

void Scheduler::end_waiting(Group& group, std::uint64_t sequence, const Error& cause) {
  const auto waiting = std::ranges::find_if(
      group.waiting_, [&](const auto& operation) { return operation->sequence() == sequence; });
  if (waiting != group.waiting_.end()) {
    (*waiting)->tell(cause);
    group.waiting_.erase(waiting);
    group.inputs_.erase(sequence);
    start_waiting(group);  // the next operation may have waited only for this one
  }
}

void Scheduler::fail(Group& group, const Error& cause) {
  const auto with_label = [&](const Operation& operation) {
    return Error(
        cause.kind(),
        fmt::format("{}: {}{}", operation.label(), cause.what(),
                    cause.kind() == ErrorKind::kAborted ? waited_for(operation) : std::string()),
        true);
  };
  std::deque<std::unique_ptr<Operation>> waiting;
  waiting.swap(group.waiting_);
  for (auto& [operation, input] : group.held_) {
    waiting.push_back(std::move(operation));
  }
  group.held_.clear();
  group.inputs_.clear();
  for (const auto& operation : operations_) {
    if (&operation->group() == &group) {
      operation->fail(with_label(*operation));
    }
  }
  for (const auto& operation : waiting) {
    operation->tell(with_label(*operation));
  }
}

void Scheduler::enter_line(Operation& operation) { operation.group().line_.push_back(&operation); }

void Scheduler::leave_line(Operation& operation) {
  std::vector<Operation*>& line = operation.group().line_;
  std::erase(line, &operation);
  if (line.empty()) {
    return;
  }
  Operation& next = *line.front();
  if (next.turn_waiter) {
    make_ready(std::exchange(next.turn_waiter, {}), next);
  }
}

bool Scheduler::has_turn(const Operation& operation) {
  return operation.group().line_.front() == &operation;
}

void Scheduler::wait_at_gate(Operation& operation) {
  ++operation.group().at_gate_;
  // Do not start them from within the operation, which is about to be suspended.
  post([this, group = operation.shared_group()] { start_waiting(*group); });
}

void Scheduler::leave_gate(Operation& operation) { --operation.group().at_gate_; }

void Scheduler::plan_timers(transport::TimePoint now) {
  next_timer_ = now + kIdleTimer;
  for (const auto& group : groups_.all()) {
    for (const auto& operation : group->waiting_) {
      if (operation->deadline > now) {
        wake_by(operation->deadline);
      }
    }
    for (const auto& [operation, input] : group->held_) {
      if (operation->deadline > now) {
        wake_by(operation->deadline);
      }
    }
  }
  for (const auto& operation : operations_) {
    if (operation->cause() && operation->state != Operation::State::kLingering) {
      continue;
    }
    wake_by(std::max(operation->deadline, now));
  }
}

}  // namespace gtopk::engine
