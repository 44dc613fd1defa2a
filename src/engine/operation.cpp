#include "engine/operation.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/engine.hpp"
#include "engine/group.hpp"
#include "engine/group_view.hpp"

namespace gtopk::engine {
namespace {

constexpr std::size_t kKeptStorages = Engine::kMaxInFlight;

std::unique_ptr<OperationStorage> take_storage(Engine& engine) {
  if (engine.storages().empty()) return std::make_unique<OperationStorage>();
  std::unique_ptr<OperationStorage> storage = std::move(engine.storages().back());
  engine.storages().pop_back();
  return storage;
}

/// A body that refused its arguments before it became a coroutine fails like any other.
Task<void> throwing(std::exception_ptr error) {
  std::rethrow_exception(error);
  co_return;
}

}  // namespace

Operation::Operation(Engine& engine, std::shared_ptr<Group> group, std::uint64_t sequence,
                     OperationSpec spec)
    : engine_(engine),
      group_(std::move(group)),
      sequence_(sequence),
      spec_(std::move(spec)),
      view_(std::make_unique<GroupView>(*this)),
      storage_(take_storage(engine)),
      slots_(storage_->slots),
      free_slots_(storage_->free_slots),
      buffers_(storage_->buffers) {}

Operation::~Operation() {
  body_ = {};
  for (BufferPool::Buffer& buffer : buffers_) engine_.pool().give_back(std::move(buffer));
  buffers_.clear();
  // An engine that goes with messages still in the network takes their slots with it.
  if (!quiet() || engine_.storages().size() >= kKeptStorages) return;
  free_slots_.clear();
  for (MessageSlot& slot : slots_) {
    slot.operation = nullptr;
    free_slots_.push_back(&slot);
  }
  engine_.storages().push_back(std::move(storage_));
}

std::string Operation::label() const {
  if (spec_.point_to_point) {
    return fmt::format("{} of group '{}' on rank {}", spec_.name, group_->name(), group_->rank());
  }
  return fmt::format("{} #{} of group '{}' on rank {}", spec_.name, sequence_, group_->name(),
                     group_->rank());
}

std::vector<std::uint32_t> Operation::waits_for(bool sends) const {
  std::vector<std::uint32_t> ranks;
  for (const MessageSlot& slot : slots_) {
    if (slot.operation == nullptr || !slot.request.pending()) continue;
    if (slot.request.is_receive != sends) ranks.push_back(slot.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Operation::start() {
  phase = Phase::kRunning;
  try {
    body_ = spec_.body(*view_);
  } catch (...) {
    body_ = throwing(std::current_exception());
  }
  body_.start();
}

void Operation::fail(const Error& cause) {
  if (cause_ || phase == Phase::kLingering) return;
  cause_ = cause;
  if (turn_waiter) engine_.make_ready(std::exchange(turn_waiter, {}), *this);
  for (MessageSlot& slot : slots_) {
    if (slot.operation == nullptr) continue;
    if (slot.waiter) engine_.make_ready(std::exchange(slot.waiter, {}), *this);
    if (slot.request.pending() && slot.request.is_receive) {
      engine_.transport().cancel(slot.request);
    }
  }
}

void Operation::answer(std::uint32_t rank, const std::string& call) {
  for (MessageSlot& slot : slots_) {
    if (slot.operation == nullptr || !slot.unexplained || slot.rank != rank) continue;
    slot.unexplained = false;
    others_call = call;
    if (slot.waiter) engine_.make_ready(std::exchange(slot.waiter, {}), *this);
  }
}

MessageSlot& Operation::post(bool receive, std::uint32_t rank, transport::Tag tag, void* data,
                             std::size_t bytes) {
  if (cause_) throw Error(*cause_);
  MessageSlot* slot = nullptr;
  if (free_slots_.empty()) {
    slot = &slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  slot->operation = this;
  slot->waiter = {};
  slot->rank = rank;
  slot->orphaned = false;
  slot->unexplained = false;
  slot->request.is_receive = receive;
  slot->request.prepare(&Operation::completed, slot);
  ++pending_;
  const transport::PeerId peer = group_->peer(rank);
  if (receive) {
    engine_.transport().recv(peer, tag, data, bytes, slot->request);
  } else {
    group_->counters.messages_sent.fetch_add(1, std::memory_order_relaxed);
    group_->counters.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
    engine_.count_sent(peer);
    engine_.transport().send(peer, tag, data, bytes, slot->request);
  }
  return *slot;
}

void Operation::completed(transport::Request& request) {
  MessageSlot& slot = *static_cast<MessageSlot*>(request.context());
  Operation& operation = *slot.operation;
  --operation.pending_;
  const bool truncated = request.status() == transport::Status::kTruncated;
  if (request.is_receive && (request.status() == transport::Status::kOk || truncated)) {
    Counters& counters = operation.group_->counters;
    counters.messages_received.fetch_add(1, std::memory_order_relaxed);
    counters.bytes_received.fetch_add(request.length(), std::memory_order_relaxed);
    operation.engine_.count_received(operation.group_->peer(slot.rank));
  }
  if (truncated && !slot.orphaned && !operation.spec_.point_to_point && !operation.cause_) {
    // Nothing can be read from it, so its sender must say what it is.
    slot.unexplained = true;
    operation.questions_.push_back(slot.rank);
    operation.engine_.has_question(operation);
    return;
  }
  if (slot.waiter) operation.engine_.make_ready(std::exchange(slot.waiter, {}), operation);
  if (slot.orphaned) {
    slot.operation = nullptr;
    operation.free_slots_.push_back(&slot);
  }
}

void Operation::release(MessageSlot& slot) {
  slot.unexplained = false;
  if (slot.request.pending()) {
    slot.orphaned = true;
    slot.waiter = {};
    return;
  }
  slot.operation = nullptr;
  free_slots_.push_back(&slot);
}

std::byte* Operation::buffer(std::size_t bytes) {
  return buffers_.emplace_back(engine_.pool().take(bytes)).memory.get();
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
  body_ = {};  // lets go of its messages; those still in the network stay with the slab
  for (MessageSlot& slot : slots_) {
    // Nobody will read what is received, and it may never come: its sender may have failed as well.
    const bool waits = slot.operation != nullptr && slot.request.pending();
    if (waits && slot.request.is_receive) engine_.transport().cancel(slot.request);
  }
  if (!thrown) return std::nullopt;
  return cause_ ? cause_ : Error(thrown->kind(), fmt::format("{}: {}", label(), thrown->what()));
}

void Operation::tell(const std::optional<Error>& result) {
  const auto done = std::exchange(spec_.done, nullptr);
  if (done) done(result ? std::make_exception_ptr(*result) : nullptr);
}

}  // namespace gtopk::engine
