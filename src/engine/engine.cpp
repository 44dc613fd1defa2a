#include "src/engine/engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/engine/group_view.hpp"
#include "src/transport/base/log.hpp"

namespace gtopk::engine {

using transport::PeerId;

Engine::Engine(transport::Transport& transport, const transport::Clock& clock, Executor& executor,
               Lookups* lookups, std::shared_ptr<const transport::JobKey> key)
    : transport_(transport),
      clock_(clock),
      executor_(executor),
      stale_(transport),
      membership_(transport, clock, std::move(key)),
      failure_acks_(transport, clock, membership_),
      flow_control_(membership_),
      strangers_(transport, groups_, membership_),
      scheduler_(clock, groups_,
                 {.called = [this](Scheduler::Queued& call) { admit(call); },
                  .ended =
                      [this](Operation& operation, const Scheduler::Outcome& outcome) {
                        probes_.begin_lingering(operation);
                        failures_.operation_ended(operation, outcome);
                      }}),
      failures_(transport, clock, groups_, scheduler_, membership_, failure_acks_, flow_control_,
                stale_),
      probes_(transport, clock, groups_, scheduler_, membership_, flow_control_, failures_),
      inquiries_(
          transport, clock, groups_, scheduler_, membership_, lookups,
          {.left = [this](PeerId peer, const std::string& words) { peer_left(peer, words); },
           .failed = [this](transport::PeerFailure failure) { peer_failed(std::move(failure)); },
           .post = [this](std::function<void()> work) { post(std::move(work)); }}) {
  observers_.add(meter_);
  if (lookups != nullptr) {
    transport_.use(this);
  }
}

Engine::~Engine() { observers_.clear(); }

std::uint64_t Engine::submit(const std::shared_ptr<Group>& group, OperationSpec spec,
                             std::shared_ptr<Gate> input) {
  if (input) {
    spec.body = [input, body = std::move(spec.body)](GroupView& view) {
      if (!input->shut()) {
        throw Error(ErrorKind::kAborted, "its input did not arrive from the device");
      }
      return body(view);
    };
  }
  const std::uint64_t sequence = scheduler_.submit(group, std::move(spec), std::move(input));
  transport_.wake();
  return sequence;
}

void Engine::post(std::function<void()> work) {
  scheduler_.post(std::move(work), [this] { transport_.wake(); });
}

void Engine::admit(Scheduler::Queued& call) {
  auto operation = std::make_unique<Operation>(*this, call.group, call.sequence, call.time,
                                               std::move(call.spec));
  observers_.queued(operation->event(call.time));
  operation->called = clock_.now();
  operation->deadline = operation->called + operation->spec().timeout;
  scheduler_.wake_by(operation->deadline);
  if (const std::optional<Error> cause = failures_.refusal(*operation)) {
    operation->tell(cause);
    return;
  }
  std::unique_ptr<AwaitedInput> input;
  if (call.input) {
    input = std::make_unique<AwaitedInput>(call.input, [this, group = call.group] {
      post([this, group] { scheduler_.input_came(*group); });
    });
  }
  scheduler_.admit(std::move(operation), std::move(input));
}

std::uint32_t Engine::reserve_group_id() {
  const std::optional<std::uint32_t> id = groups_.reserve();
  if (!id) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a process can be in at most {} groups at a time: destroy one first",
                            transport::kMaxGroups));
  }
  failures_.forget_group(*id);
  return *id;
}

std::shared_ptr<Group> Engine::add_group(GroupSpec spec) {
  std::shared_ptr<Group> group = groups_.make(std::move(spec), transport_);
  membership_.watch(*group);
  for (const auto& [from, notice] : failures_.take_early()) {
    hand_on(from, notice);
  }
  return group;
}

void Engine::remove_group(Group& group) {
  const Error cause(ErrorKind::kAborted,
                    fmt::format("group '{}' was destroyed on {} while this was in progress",
                                group.name(), group.member(group.rank())));
  if (!scheduler_.idle(group)) {
    // Without this, the other ranks would wait for this rank until their deadlines.
    failures_.fail_group(group, cause, true);
  } else if (!group.failure) {
    group.failure = cause;  // later calls fail with it
    stale_.discard_group(group.id());
  }
  group.find_peer = nullptr;
  groups_.remove(group);
}

bool Engine::handle_failures() {
  std::vector<transport::PeerFailure> failures = transport_.take_failures();
  const bool any = !failures.empty();
  std::erase_if(failures, [this](const transport::PeerFailure& failure) {
    return inquiries_.examine(failure);
  });
  for (transport::PeerFailure& failure : failures) {
    peer_failed(std::move(failure));
  }
  return any;
}

void Engine::peer_failed(transport::PeerFailure failure) {
  // This thread waits for the diagnosis, so diagnose only if it is reported. After a group's first
  // failed peer, further failures in it mostly have the same cause.
  const bool is_told = std::ranges::any_of(groups_.all(), [&](const auto& group) {
    return !group->failure && group->rank_of(failure.peer);
  });
  if (failure.diagnose && is_told) {
    if (const std::string found = failure.diagnose(); !found.empty()) {
      failure.reason += ". " + found;
    }
  }
  failures_.peer_failed(failure);
}

bool Engine::handle_notices() {
  const auto notices = membership_.take_notices();
  for (const auto& [from, notice] : notices) {
    handle(from, notice);
  }
  return !notices.empty();
}

void Engine::handle(PeerId from, const Notice& notice) {
  if (notice.kind == NoticeKind::kGoodbye) {
    if (membership_.is_last_goodbye(from, notice)) {
      peer_left(from, notice.text);
      membership_.return_goodbye(from);
    }
    return;
  }
  if (membership_.in_doubt(from)) {
    peer_answered(from);
  }
  if (notice.kind == NoticeKind::kHello) {
    handle_hello(from, notice.text);
    return;
  }
  if (notice.kind == NoticeKind::kHeard || notice.kind == NoticeKind::kAllHeard) {
    failure_acks_.handle(from, notice);
    return;
  }
  if (notice.kind == NoticeKind::kAbort || notice.kind == NoticeKind::kGroupFailure) {
    failure_acks_.heard(from, notice);
  }
  hand_on(from, notice);
}

void Engine::hand_on(PeerId from, const Notice& notice) {
  const std::shared_ptr<Group> group = groups_.find(notice.group);
  const auto rank = group == nullptr ? std::nullopt : group->rank_of(from);
  // A group whose number here belonged to an earlier group has another number at a member of both
  // groups. That member accepts the earlier number as long as it can carry information.
  if (!rank || notice.answer_group != group->id_at(*rank)) {
    failures_.handle_early(from, notice);
    return;
  }
  if (notice.kind == NoticeKind::kProbe) {
    probes_.answer(*group, from, notice.sequence);
  } else if (notice.kind == NoticeKind::kReply) {
    probes_.take_answer(*group, from, notice);
  } else if (FlowControl::takes(notice.kind)) {
    flow_control_.handle(*group, *rank, notice);
  } else {
    failures_.handle(*group, from, notice);
  }
}

void Engine::handle_hello(PeerId from, const std::string& address) {
  if (!address.empty()) {
    try {
      transport_.set_address(from, address);
      inquiries_.address_came(from);
    } catch (const Error& unreadable) {
      transport::log().warn("ignoring the unreadable address in a hello: {}", unreadable.what());
    }
  }
  membership_.answer_hello(from);
}

void Engine::peer_answered(PeerId peer) {
  membership_.settle(peer);
  for (const auto& operation : scheduler_.operations()) {
    if (const auto rank = operation->group().rank_of(peer)) {
      operation->peer_lives(*rank);
    }
  }
}

void Engine::peer_left(PeerId peer, const std::string& last_words) {
  membership_.departed(peer, last_words);
  flow_control_.peer_left(peer);
  transport_.expect_departure(peer);
  for (const auto& operation : scheduler_.operations()) {
    if (const auto rank = operation->group().rank_of(peer)) {
      operation->peer_left(*rank);
      probes_.receiver_left(*operation, *rank);
    }
  }
}

void Engine::check_timers() {
  const transport::TimePoint now = clock_.now();
  if (now >= scheduler_.next_timer()) {
    probes_.check_deadlines(now);
    scheduler_.forget_quiet();  // otherwise their deadlines would stay due forever
    scheduler_.plan_timers(now);
  }
  inquiries_.check(now);
  stale_.sweep(now, [this](std::uint32_t id) {
    const std::shared_ptr<Group> group = groups_.find(id);
    return group == nullptr ? 0 : group->arrived();
  });
  strangers_.look(now);
}

bool Engine::is_watched_like(const AnySender& sender) const {
  return std::ranges::any_of(any_senders_,
                             [&](const AnySender* each) { return each->waits_like(sender); });
}

void Engine::look_for_any_sender() {
  for (AnySender* const sender : any_senders_) {
    Operation& operation = sender->operation();
    if (operation.turn_waiter && sender->look()) {
      make_ready(std::exchange(operation.turn_waiter, {}), operation);
    }
  }
}

Engine::Step Engine::step() {
  const bool moved = transport_.progress();
  if (moved) {
    stale_.moved();
    strangers_.moved();
  }
  bool worked = handle_notices();
  worked |= scheduler_.take_queue();
  worked |= handle_failures();
  look_for_any_sender();
  if (clock_.now() >= next_timer()) {
    worked |= scheduler_.resume_ready();  // messages that have just arrived are not late
    check_timers();
  }
  worked |= flow_control_.settle();
  worked |= failures_.fail_deserted();
  failures_.ask_questions();
  worked |= scheduler_.resume_ready();
  flow_control_.flush();
  failure_acks_.settle();
  inquiries_.begin();
  if (moved || worked) {
    scheduler_.forget_quiet();
  }
  if (worked) {
    return Step::kWorked;
  }
  return moved ? Step::kBytesMoved : Step::kNothing;
}

void Engine::fail_everything(const Error& cause) {
  for (const auto& group : groups_.all()) {
    failures_.fail_group(*group, cause, false);
  }
}

void Engine::give_up_pending() {
  for (const auto& operation : scheduler_.operations()) {
    for (const std::uint32_t rank : operation->waits_for()) {
      probes_.give_up(operation->group().peer(rank));
    }
  }
  for (const PeerId peer : membership_.unsent()) {
    probes_.give_up(peer);
  }
}

bool Engine::in_doubt(const transport::Request& request) const {
  switch (request.status()) {
    case transport::Status::kOk:
      return (!request.is_receive || membership_.wants_proof()) &&
             membership_.in_doubt(request.peer);
    case transport::Status::kPeerFailed:
      return membership_.in_doubt(request.peer) && transport_.why_unreachable(request.peer).empty();
    case transport::Status::kInProgress:
    case transport::Status::kTruncated:
    case transport::Status::kCancelled:
    case transport::Status::kFailed:
      return false;
  }
  return false;
}

void Engine::make_current(Memory memory) {
  if (memory == current_ || !make_current_) {
    return;
  }
  make_current_(memory);
  current_ = memory;
}

}  // namespace gtopk::engine
