#include "src/engine/operation.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/engine/engine.hpp"
#include "src/engine/group.hpp"
#include "src/engine/group_view.hpp"
#include "src/transport/base/log.hpp"

namespace gtopk::engine {
namespace {

constexpr std::size_t kKeptStorages = Engine::kMaxInFlight;

std::unique_ptr<OperationStorage> take_storage(Engine& engine) {
  if (engine.storages().empty()) {
    return std::make_unique<OperationStorage>();
  }
  std::unique_ptr<OperationStorage> storage = std::move(engine.storages().back());
  engine.storages().pop_back();
  return storage;
}

/// The number of buffers for which capacity is kept; only huge operations need more.
constexpr std::size_t kKeptBuffers = 1024;

/// Makes a body that rejects its arguments before it becomes a coroutine fail like any other.
Task<void> throwing(std::exception_ptr error) {
  std::rethrow_exception(error);
  co_return;
}

}  // namespace

bool OperationStorage::recycle() {
  // If the engine ends while messages are still in the network, their slots are kept.
  if (!slots.none_in_use()) {
    return false;
  }
  slots.trim();
  buffers.clear();
  if (buffers.capacity() > kKeptBuffers) {
    buffers.shrink_to_fit();
  }
  return true;
}

Operation::Operation(Engine& engine, std::shared_ptr<Group> group, std::uint64_t sequence,
                     transport::TimePoint queued, OperationSpec spec)
    : engine_(engine),
      group_(std::move(group)),
      number_(engine.take_number()),
      sequence_(sequence),
      queued_(queued),
      spec_(std::move(spec)),
      fingerprint_(spec_.agreement.fingerprint()),
      view_(std::make_unique<GroupView>(*this)) {}

Operation::~Operation() {
  for (const std::shared_ptr<ExternalWorkState>& external_work : external_work_) {
    leave_alone(*external_work);
  }
  body_ = {};
  if (!storage_) {
    return;
  }
  for (BufferPool::Buffer& buffer : storage_->buffers) {
    engine_.pool().give_back(std::move(buffer));
  }
  if (engine_.storages().size() < kKeptStorages && storage_->recycle()) {
    engine_.storages().push_back(std::move(storage_));
  }
}

std::string Operation::title() const {
  return spec_.point_to_point() ? spec_.name : fmt::format("{} #{}", spec_.name, sequence_);
}

std::string Operation::label() const {
  return fmt::format("{} of group '{}' on rank {}", title(), group_->name(), group_->rank());
}

void Operation::start() {
  state = State::kRunning;
  ran_ = true;
  started_ = engine_.clock().now();
  engine_.observers().started(event(started_));
  try {
    body_ = spec_.body(*view_);
  } catch (...) {
    body_ = throwing(std::current_exception());
  }
  body_.start();
}

void Operation::fail(const Error& cause) {
  if (cause_ || state == State::kLingering) {
    return;
  }
  cause_ = cause;
  if (turn_waiter) {
    engine_.make_ready(std::exchange(turn_waiter, {}), *this);
  }
  if (external_work_waiter) {
    engine_.make_ready(std::exchange(external_work_waiter, {}), *this);
  }
  if (gate_waiter) {
    engine_.make_ready(std::exchange(gate_waiter, {}), *this);
  }
  if (answer_waiter_) {
    engine_.make_ready(std::exchange(answer_waiter_, {}), *this);
  }
  bool awaits_header = false;
  for_each_slot([&](MessageSlot& slot) {
    const bool receives = slot.request.pending() && slot.request.is_receive;
    if (slot.waiter && !(receives && slot.is_header)) {
      engine_.make_ready(std::exchange(slot.waiter, {}), *this);
    }
    if (receives) {
      engine_.transport().cancel(slot.request);
      awaits_header = awaits_header || (slot.is_header && slot.request.pending());
    }
  });
  if (awaits_header) {
    tell(cause_);
  }
}

OperationStorage& Operation::storage() {
  if (!storage_) {
    storage_ = take_storage(engine_);
  }
  return *storage_;
}

MessageSlot& Operation::take_slot(bool receive, std::uint32_t rank) {
  if (cause_) {
    throw Error(*cause_);
  }
  MessageSlot& slot = storage().slots.take(*this);
  slot.rank = rank;
  slot.request.is_receive = receive;
  slot.request.prepare(&Operation::completed, &slot);
  ++pending_;
  return slot;
}

void Operation::enter(Memory memory, std::uint32_t rank) {
  if (!engine_.transport().takes(memory.kind, group_->peer(rank))) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("a message between this rank and {} is in memory of {}, which the "
                            "transport does not accept between these ranks",
                            group_->member(rank), to_string(memory)));
  }
  engine_.make_current(memory);
}

void Operation::expect_member(std::uint32_t rank) const {
  if (engine_.has_left(group_->peer(rank))) {
    throw Error(ErrorKind::kPeerFailed, departure_of(rank));
  }
}

void Operation::post(MessageSlot& slot, transport::Tag tag, ConstBytes data) {
  group_->metrics.add(Metric::kMessagesSent);
  group_->metrics.add(Metric::kBytesSent, data.size());
  const transport::PeerId peer = group_->peer(slot.rank);
  engine_.contact(peer);
  engine_.transport().send(peer, tag, data, slot.request);
}

MessageSlot& Operation::send(std::uint32_t to, transport::Tag tag, ConstBytes data,
                             std::uint32_t connection) {
  expect_member(to);
  if (!data.memory().is_host()) {
    enter(data.memory(), to);
  }
  MessageSlot& slot = take_slot(false, to);
  slot.request.connection = connection;
  post(slot, tag, data);
  return slot;
}

MessageSlot& Operation::hold(std::uint32_t to, std::uint32_t serial, transport::Tag tag,
                             ConstBytes data) {
  expect_member(to);
  if (!data.memory().is_host()) {
    enter(data.memory(), to);
  }
  MessageSlot& slot = take_slot(false, to);
  slot.request.peer = group_->peer(to);
  slot.request.tag = tag;
  slot.request.connection = 0;
  engine_.flow_control().hold(slot, serial, tag, data);
  return slot;
}

void Operation::post_held(MessageSlot& slot, transport::Tag tag, ConstBytes data) {
  try {
    if (!data.memory().is_host()) {
      enter(data.memory(), slot.rank);
    }
  } catch (const std::exception& error) {
    transport::log().error("{}: {}", label(), error.what());
    slot.request.complete(transport::Status::kFailed, 0);
    return;
  }
  post(slot, tag, data);
}

MessageSlot& Operation::recv(std::uint32_t from, transport::Tag tag, Bytes buffer) {
  if (!buffer.memory().is_host()) {
    enter(buffer.memory(), from);
  }
  MessageSlot& slot = take_slot(true, from);
  const transport::PeerId peer = group_->peer(from);
  engine_.contact(peer);
  engine_.transport().recv(peer, tag, buffer, slot.request);
  if (engine_.has_left(peer)) {
    withdraw_from_departed(slot);
  }
  return slot;
}

void Operation::completed(transport::Request& request) {
  MessageSlot& slot = *static_cast<MessageSlot*>(request.context());
  Operation& operation = *slot.operation;
  --operation.pending_;
  operation.engine_.flow_control().ended(operation, request);
  const bool truncated = request.status() == transport::Status::kTruncated;
  if (request.is_receive && (request.status() == transport::Status::kOk || truncated)) {
    Metrics& metrics = operation.group_->metrics;
    metrics.add(Metric::kMessagesReceived);
    metrics.add(Metric::kBytesReceived, request.length());
  }
  if (truncated && !slot.orphaned && !operation.spec_.point_to_point() && !operation.cause_) {
    // The message is unreadable, so its sender is asked what it is.
    slot.unexplained = true;
    operation.questions_.push_back(slot.rank);
    operation.engine_.has_question(operation);
    return;
  }
  if (operation.engine_.in_doubt(request) && !slot.orphaned && !operation.cause_) {
    slot.in_doubt = true;
    return;
  }
  slot.deserted = slot.deserted && request.status() == transport::Status::kCancelled;
  if (slot.deserted && !slot.orphaned && !operation.cause_) {
    operation.engine_.is_deserted(operation, slot.rank);
    return;
  }
  if (slot.waiter) {
    operation.engine_.make_ready(std::exchange(slot.waiter, {}), operation);
  }
  if (slot.orphaned) {
    operation.storage_->slots.give_back(slot);
  }
}

void Operation::release(MessageSlot& slot) {
  slot.unexplained = false;
  sent_in_doubt_ = sent_in_doubt_ || (slot.in_doubt && !slot.request.is_receive);
  slot.in_doubt = false;
  if (slot.request.pending()) {
    slot.orphaned = true;
    slot.waiter = {};
    return;
  }
  storage_->slots.give_back(slot);
}

std::byte* Operation::buffer(std::size_t bytes) {
  return storage().buffers.emplace_back(engine_.pool().take(bytes)).memory.get();
}

void Operation::compute(std::coroutine_handle<> waiter, std::function<void()> work) {
  ++computing_;
  engine_.executor().run({[this, work = std::move(work)] {
                            try {
                              work();
                            } catch (...) {
                              compute_error = std::current_exception();
                            }
                          },
                          [this, waiter] {
                            engine_.post([this, waiter] {
                              --computing_;
                              engine_.make_ready(waiter, *this);
                            });
                          }});
}

std::optional<Error> Operation::take_result() {
  std::optional<Error> thrown;
  try {
    body_.take();
  } catch (const Error& error) {
    thrown = error;
  } catch (const std::exception& error) {
    thrown = Error(ErrorKind::kTransport, error.what());
  }
  body_ = {};  // releases its messages; the slab keeps the ones still in the network
  for_each_slot([&](MessageSlot& slot) {
    // The received data will not be read, and may never arrive because its sender may have failed,
    // too.
    if (slot.request.pending() && slot.request.is_receive) {
      engine_.transport().cancel(slot.request);
    }
  });
  if (!thrown) {
    return std::nullopt;
  }
  return cause_ ? cause_ : Error(thrown->kind(), fmt::format("{}: {}", label(), thrown->what()));
}

void Operation::enter(std::string_view phase) {
  const transport::TimePoint now = engine_.clock().now();
  engine_.observers().phase(event(now), phase);
  phase_ = phase;
  phase_began_ = now;
}

OperationEvent Operation::event(transport::TimePoint at) const {
  return {.group = *group_,
          .number = number_,
          .name = spec_.name,
          .agreement = spec_.agreement,
          .bytes = spec_.bytes,
          .timeout = spec_.timeout,
          .sequence = sequence_,
          .point_to_point = spec_.point_to_point(),
          .queued = queued_,
          .started = started_,
          .ran = ran_,
          .phase = phase_,
          .phase_began = phase_began_,
          .in_flight = group_->in_flight(),
          .at = at};
}

void Operation::tell(const std::optional<Error>& result) {
  if (!std::exchange(told_, true)) {
    if (!engine_.observers().empty()) {
      engine_.observers().ended(event(engine_.clock().now()), result ? &*result : nullptr);
    }
    if (result && spec_.failed) {
      try {
        spec_.failed(group_->per_group_state, sequence_, *result);
      } catch (...) {
        transport::log_thrown(fmt::format("the failure handler of {}", label()));
      }
    }
  }
  // The caller may release the memory at once when notified, on its own thread instead of this one.
  if (quiet()) {
    spec_.keepalive.reset();
  }
  const auto done = std::exchange(spec_.done, nullptr);
  if (!done) {
    return;
  }
  try {
    done(result ? std::make_exception_ptr(*result) : nullptr);
  } catch (...) {
    transport::log_thrown(fmt::format("the callback of {}", label()));
  }
}

}  // namespace gtopk::engine
