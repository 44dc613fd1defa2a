#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "transport/base/log.hpp"

namespace gtopk::engine {

using transport::PeerId;

Engine::Engine(transport::Transport& transport, const transport::Clock& clock, Executor& executor,
               Lookups* lookups)
    : transport_(transport),
      clock_(clock),
      executor_(executor),
      lookups_(lookups),
      control_(transport),
      stale_(transport) {
  if (lookups_ != nullptr) transport_.use(this);
}

Engine::~Engine() {
  if (lookups_ != nullptr) transport_.use(nullptr);
  const auto end = [](Operation& operation) {
    operation.tell(
        Error(ErrorKind::kAborted, fmt::format("{}: the engine has ended", operation.label())));
  };
  for (const auto& operation : operations_) end(*operation);
  for (const auto& group : groups_) {
    for (const auto& operation : group->waiting) end(*operation);
    group->waiting.clear();  // groups may outlive the engine, operations may not
  }
  operations_.clear();  // one that ends may make another ready
}

void Engine::submit(const std::shared_ptr<Group>& group, OperationSpec spec) {
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t sequence = spec.point_to_point ? 0 : group->next_sequence_++;
    queue_.push_back({{}, group, sequence, std::move(spec)});
  }
  transport_.wake();
}

void Engine::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), {}, 0, {}});
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
  for (Queued& queued : taking_) {
    if (queued.work) {
      queued.work();
    } else {
      admit(queued.group, std::make_unique<Operation>(*this, queued.group, queued.sequence,
                                                      std::move(queued.spec)));
    }
  }
  const bool any = !taking_.empty();
  taking_.clear();
  return any;
}

std::uint32_t Engine::reserve_group_id() {
  const std::optional<std::uint32_t> id = ids_.take();
  if (!id) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a process can be in {} groups at a time: destroy some first",
                            transport::kMaxGroups));
  }
  // What is left of a former group of this number is not told apart from the new one's messages.
  stale_.forget_group(*id);
  stale_.discard_group(*id);
  std::erase_if(early_, [&](const Early& early) { return early.notice.group == *id; });
  return *id;
}

std::shared_ptr<Group> Engine::add_group(GroupSpec spec) {
  const std::size_t size = spec.cards.size();
  const bool fits =
      std::ranges::all_of(spec.ids, [](std::uint32_t id) { return id < transport::kMaxGroups; });
  if (!fits || size > transport::kMaxRanks || spec.ids.size() != size || spec.rank >= size) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("group '{}': rank {} of {} (at most {}), {} ids (one per rank, below {})",
                    spec.name, spec.rank, size, transport::kMaxRanks, spec.ids.size(),
                    transport::kMaxGroups));
  }
  const std::uint32_t id = spec.ids[spec.rank];
  if (!ids_.taken(id) || find_group(id) != nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("group '{}': id {} is {}", spec.name, id,
                            ids_.taken(id) ? "taken" : "not reserved"));
  }
  std::vector<PeerId> peers;
  peers.reserve(size);
  for (const std::string& card : spec.cards) peers.push_back(transport_.add_peer(card));
  for (std::uint32_t rank = 0; rank < peers.size(); ++rank) {
    if (rank != spec.rank) control_.watch(peers[rank]);
  }
  auto group = std::make_shared<Group>(std::move(spec), std::move(peers), transport_);
  groups_.push_back(group);
  for (const Early& early : std::exchange(early_, {})) handle(early.from, early.notice);
  return group;
}

void Engine::remove_group(Group& group) {
  const Error cause(ErrorKind::kAborted,
                    fmt::format("group '{}' was destroyed on {} while this was under way",
                                group.name(), group.member(group.rank())));
  if (!idle(group)) {
    fail_group(group, cause, true);  // the others would wait for this rank until their deadlines
  } else if (!group.failure) {
    group.failure = cause;  // of what is called from now on
    stale_.discard_group(group.id());
  }
  group.find_address = nullptr;
  std::erase_if(groups_, [&](const auto& held) { return held.get() == &group; });
  ids_.give_back(group.id());
}

void Engine::look_up(PeerId peer) {
  for (const auto& group : groups_) {
    const auto rank = group->rank_of(peer);
    if (!rank || !group->find_address) continue;
    lookups_->run([find = group->find_address,
                   rank = *rank](const std::stop_token& stop) { return find(rank, stop); },
                  [this, peer](std::string address, std::string error) {
                    post([this, peer, address = std::move(address), error = std::move(error)] {
                      if (!error.empty()) {
                        transport_.no_address(peer, error);
                        return;
                      }
                      try {
                        transport_.set_address(peer, address);
                      } catch (const Error& unreadable) {
                        transport_.no_address(peer, unreadable.what());
                      }
                    });
                  });
    return;
  }
  post([this, peer] { transport_.no_address(peer, "no group with it is left here"); });
}

void Engine::admit(const std::shared_ptr<Group>& group, std::unique_ptr<Operation> operation) {
  const std::uint64_t sequence = operation->sequence();
  const bool collective = !operation->spec().point_to_point;
  if (collective) group->arrived = sequence + 1;
  operation->called = clock_.now();
  operation->deadline = operation->called + operation->spec().timeout;
  next_timer_ = std::min(next_timer_, operation->deadline);
  if (group->failure) {
    operation->tell(Error(group->failure->kind(),
                          fmt::format("{}: {}", operation->label(), group->failure->what())));
    return;
  }
  if (collective) {
    if (const auto found = group->aborted.find(sequence); found != group->aborted.end()) {
      operation->tell(found->second);
      group->aborted.erase(found);
      discard_when_it_comes(*group, sequence);
      return;
    }
    group->waiting.push_back(std::move(operation));
    start_waiting(*group);
    return;
  }
  start(std::move(operation));
}

void Engine::start_waiting(Group& group) {
  if (group.starting) return;  // one that ended at once came back here: the loop below goes on
  group.starting = true;
  start_those_that_may(group);
  group.starting = false;
}

void Engine::start_those_that_may(Group& group) {
  while (!group.waiting.empty() && group.running.size() < kMaxInFlight) {
    if (group.waiting.front()->spec().after_earlier && !group.running.empty()) return;
    std::unique_ptr<Operation> operation = std::move(group.waiting.front());
    group.waiting.pop_front();
    group.running.emplace(operation->sequence(), operation.get());
    group.last_name = operation->spec().name;  // keeps its memory
    group.last_sequence = operation->sequence();
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
  const std::shared_ptr<Group> held =
      operation.shared_group();  // the operation may be the last owner
  const bool caused_here = !operation.cause().has_value();
  const std::optional<Error> result = operation.take_result();
  std::erase(asking_, &operation);
  std::erase_if(deserted_, [&](const auto& deserted) { return deserted.first == &operation; });
  operation.phase = Operation::Phase::kLingering;
  operation.deadline = clock_.now() + kLingerBound - kProbeGrace;
  next_timer_ = std::min(next_timer_, operation.deadline);
  group.counters.in_flight.fetch_sub(1, std::memory_order_relaxed);
  if (!operation.spec().point_to_point) {
    group.running.erase(operation.sequence());
    if (result) {
      discard_when_it_comes(group, operation.sequence());
      if (caused_here) {
        tell_members(group,
                     {NoticeKind::kAbort, result->kind(), 0, operation.sequence(), result->what()});
      }
    }
  } else if (result) {
    if (operation.transfer && !operation.quiet()) withdraw(group, *operation.transfer);
    if (operation.announced) {
      stale_.add_payload(group.id(), *operation.announced, clock_.now());
      next_timer_ = std::min(next_timer_, stale_.next_sweep());
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

Engine::Step Engine::step() {
  const bool moved = transport_.progress();
  if (moved) {
    stale_.moved();
    next_timer_ = std::min(next_timer_, stale_.next_sweep());
  }
  bool worked = take_queue();
  worked |= handle_notices();
  worked |= handle_failures();
  if (clock_.now() >= next_timer_) check_timers();
  worked |= fail_deserted();
  ask_questions();
  worked |= resume_ready();
  if (moved || worked) forget_quiet();
  if (worked) return Step::kWorked;
  return moved ? Step::kBytesMoved : Step::kNothing;
}

void Engine::fail_everything(const Error& cause) {
  for (const auto& group : groups_) fail_group(*group, cause, false);
}

void Engine::say_goodbye() {
  for (const PeerId peer : control_.peers()) {
    // Also to one that said it before: it waits for ours, and over shared memory sees no connection
    // end. So does one that has told us something and never got an answer, where only it has an
    // endpoint.
    const bool only_it_connects = control_.heard(peer) && !departed_.contains(peer);
    if (transport_.connected(peer) || only_it_connects) say_goodbye_to(peer);
  }
}

void Engine::say_goodbye_to(PeerId peer) {
  if (!farewells_.insert(peer).second) return;  // said before, in answer to its own
  transport_.expect_departure(peer);
  control_.send(peer, {NoticeKind::kGoodbye, ErrorKind::kAborted, 0, 0, {}});
}

bool Engine::farewell_said() const {
  if (control_.sending()) return false;
  return std::ranges::all_of(control_.peers(), [&](PeerId peer) {
    return departed_.contains(peer) || !transport_.connected(peer);
  });
}

void Engine::give_up_pending() {
  for (const auto& operation : operations_) {
    for (const bool sends : {false, true}) {
      for (const std::uint32_t rank : operation->waits_for(sends)) {
        transport_.give_up(operation->group().peer(rank));
      }
    }
  }
  for (const PeerId peer : control_.unsent()) transport_.give_up(peer);
}

bool Engine::stop_listening() {
  control_.stop();
  return control_.quiet();
}

}  // namespace gtopk::engine
