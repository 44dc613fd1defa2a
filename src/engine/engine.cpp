#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "transport/base/log.hpp"

namespace gtopk::engine {

using transport::PeerId;

Engine::Engine(transport::Transport& transport, const transport::Clock& clock, Executor& executor)
    : transport_(transport), clock_(clock), executor_(executor), control_(transport) {}

Engine::~Engine() = default;

void Engine::submit(const std::shared_ptr<Group>& group, OperationSpec spec) {
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t sequence = spec.point_to_point ? 0 : group->next_sequence_++;
    auto shared_spec = std::make_shared<OperationSpec>(std::move(spec));
    queue_.emplace_back([this, group, sequence, shared_spec] {
      admit(group, std::make_unique<Operation>(*this, group, sequence, std::move(*shared_spec)));
    });
  }
  transport_.wake();
}

void Engine::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  transport_.wake();
}

bool Engine::has_queued() const {
  const std::lock_guard lock(mutex_);
  return !queue_.empty();
}

bool Engine::take_queue() {
  {
    const std::lock_guard lock(mutex_);
    taking_.swap(queue_);
  }
  for (std::function<void()>& work : taking_) work();
  const bool any = !taking_.empty();
  taking_.clear();
  return any;
}

std::shared_ptr<Group> Engine::add_group(GroupSpec spec) {
  if (spec.id >= transport::kMaxGroups || spec.addresses.size() > transport::kMaxRanks) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("group '{}': id {} and size {} must stay below {} and {}", spec.name,
                            spec.id, spec.addresses.size(), transport::kMaxGroups,
                            transport::kMaxRanks));
  }
  if (find_group(spec.id) != nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("group '{}': id {} is taken", spec.name, spec.id));
  }
  std::vector<PeerId> peers;
  peers.reserve(spec.addresses.size());
  for (const std::string& address : spec.addresses) peers.push_back(transport_.add_peer(address));
  for (std::uint32_t rank = 0; rank < peers.size(); ++rank) {
    if (rank != spec.rank) control_.watch(peers[rank]);
  }
  auto group = std::make_shared<Group>(std::move(spec), std::move(peers), transport_);
  groups_.push_back(group);
  std::vector<std::pair<PeerId, Notice>> early;
  early.swap(early_);
  for (const auto& [from, notice] : early) handle(from, notice);
  return group;
}

void Engine::remove_group(Group& group) {
  fail_group(group,
             Error(ErrorKind::kAborted,
                   fmt::format("group '{}' was destroyed on {} while this was under way",
                               group.name(), group.member(group.rank()))),
             false);
  std::erase_if(groups_, [&](const auto& held) { return held.get() == &group; });
}

void Engine::admit(const std::shared_ptr<Group>& group, std::unique_ptr<Operation> operation) {
  const std::uint64_t sequence = operation->sequence();
  const bool collective = !operation->spec().point_to_point;
  if (collective) group->arrived = sequence + 1;
  operation->deadline = clock_.now() + operation->spec().timeout;
  next_timer_ = std::min(next_timer_, operation->deadline);
  if (group->failure) {
    operation->tell(Error(group->failure->kind(), fmt::format("{}: {}", operation->label(),
                                                              group->failure->what())));
    return;
  }
  if (collective) {
    if (const auto found = group->aborted.find(sequence); found != group->aborted.end()) {
      operation->tell(found->second);
      group->aborted.erase(found);
      mark_stale(group, sequence, false);
      return;
    }
    group->waiting.push_back(std::move(operation));
    start_waiting(*group);
    return;
  }
  start(std::move(operation));
}

void Engine::start_waiting(Group& group) {
  while (!group.waiting.empty() && group.running.size() < kMaxInFlight) {
    if (group.waiting.front()->spec().after_earlier && !group.running.empty()) return;
    std::unique_ptr<Operation> operation = std::move(group.waiting.front());
    group.waiting.pop_front();
    group.running.emplace(operation->sequence(), operation.get());
    group.last_operation = fmt::format("{} #{}", operation->spec().name, operation->sequence());
    start(std::move(operation));
  }
}

void Engine::start(std::unique_ptr<Operation> held) {
  Operation& operation = *held;
  operations_.push_back(std::move(held));
  Counters& counters = operation.group().counters;
  counters.operations.fetch_add(1, std::memory_order_relaxed);
  const std::uint32_t in_flight = counters.in_flight.fetch_add(1, std::memory_order_relaxed) + 1;
  if (in_flight > counters.most_in_flight.load(std::memory_order_relaxed)) {
    counters.most_in_flight.store(in_flight, std::memory_order_relaxed);
  }
  operation.start();
  if (operation.body_done()) finish(operation);
}

bool Engine::resume_ready() {
  if (ready_.empty()) return false;
  while (!ready_.empty()) {
    resuming_.swap(ready_);
    for (const Ready& ready : resuming_) {
      ready.handle.resume();
      if (ready.operation->body_done()) finish(*ready.operation);
    }
    resuming_.clear();
  }
  return true;
}

void Engine::finish(Operation& operation) {
  Group& group = operation.group();
  const std::shared_ptr<Group> held = operation.shared_group();  // the operation may be the last owner
  const bool caused_here = !operation.cause().has_value();
  const std::optional<Error> result = operation.take_result();
  operation.phase = Operation::Phase::kLingering;
  operation.deadline = clock_.now() + kLingerBound;
  next_timer_ = std::min(next_timer_, operation.deadline);
  group.counters.in_flight.fetch_sub(1, std::memory_order_relaxed);
  if (!operation.spec().point_to_point) {
    group.running.erase(operation.sequence());
    if (result) {
      mark_stale(held, operation.sequence(), false);
      if (caused_here) {
        tell_members(group, {NoticeKind::kAbort, result->kind(), group.id(), operation.sequence(),
                             result->what()});
      }
    }
  }
  if (result) transport::log().debug("{}", result->what());
  operation.tell(result);
  start_waiting(group);
}

bool Engine::idle(const Group& group) const {
  return group.waiting.empty() && std::ranges::none_of(operations_, [&](const auto& operation) {
           return &operation->group() == &group;
         });
}

void Engine::when_idle(const std::shared_ptr<Group>& group, std::function<void()> then) {
  if (idle(*group)) {
    then();
  } else {
    idle_waiters_.emplace_back(group, std::move(then));
  }
}

void Engine::forget_quiet() {
  std::erase_if(operations_, [](const std::unique_ptr<Operation>& operation) {
    return operation->phase == Operation::Phase::kLingering && operation->quiet();
  });
  std::erase_if(idle_waiters_, [&](const auto& waiter) {
    if (!idle(*waiter.first)) return false;
    waiter.second();
    return true;
  });
}

bool Engine::step() {
  bool any = transport_.progress();
  any |= take_queue();
  any |= handle_notices();
  any |= handle_failures();
  any |= resume_ready();
  if (clock_.now() >= next_timer_) check_timers();
  if (any) forget_quiet();
  return any;
}

void Engine::fail_everything(const Error& cause) {
  for (const auto& group : groups_) fail_group(*group, cause, false);
}

void Engine::say_goodbye() {
  for (const PeerId peer : control_.peers()) {
    if (departed_.contains(peer) || !transport_.connected(peer)) continue;
    transport_.expect_departure(peer);
    control_.send(peer, {NoticeKind::kGoodbye, ErrorKind::kAborted, 0, 0, {}});
  }
}

bool Engine::farewell_said() const {
  if (control_.sending()) return false;
  return std::ranges::all_of(control_.peers(), [&](PeerId peer) {
    return departed_.contains(peer) || !transport_.connected(peer);
  });
}

bool Engine::stop_listening() {
  control_.stop();
  return control_.quiet();
}

}  // namespace gtopk::engine
