#include "src/engine/group_view.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/engine/engine.hpp"
#include "src/engine/group.hpp"

namespace gtopk::engine {

using transport::Status;

bool Message::await_ready() const {
  const bool settled =
      !slot_->request.pending() && !slot_->unexplained && !slot_->deserted && !slot_->in_doubt;
  return settled || slot_->operation->cause().has_value();
}

std::size_t Message::await_resume() {
  const Operation& operation = *slot_->operation;
  const transport::Request& request = slot_->request;
  const bool came = request.status() == Status::kOk || request.status() == Status::kTruncated;
  if (operation.cause() && !(slot_->is_header && came)) {
    throw Error(*operation.cause());
  }
  const std::string& other = operation.group().member(slot_->rank);
  switch (request.status()) {
    case Status::kOk:
      return request.length();
    case Status::kTruncated: {
      if (slot_->is_header) {
        return request.length();
      }
      const std::string sent =
          fmt::format("{} sent {} bytes, more than {} expects", other, request.length(),
                      operation.group().member(operation.group().rank()));
      if (operation.spec().point_to_point()) {
        throw Error(ErrorKind::kMismatch, sent);
      }
      throw Error(ErrorKind::kMismatch,
                  fmt::format("ranks differ: {}: {} called {} as #{}, {} called {} as #{}", sent,
                              other, operation.others_call, operation.sequence(),
                              operation.group().member(operation.group().rank()), operation.call(),
                              operation.sequence()));
    }
    case Status::kPeerFailed: {
      if (operation.engine().has_left(request.peer)) {
        throw Error(ErrorKind::kPeerFailed, operation.departure_of(slot_->rank));
      }
      const std::string unreachable = operation.engine().transport().why_unreachable(request.peer);
      if (!unreachable.empty()) {
        throw Error(ErrorKind::kPeerFailed, fmt::format("{}: {}", other, unreachable));
      }
      throw Error(ErrorKind::kPeerFailed,
                  fmt::format("{} has left or its connection is closed", other));
    }
    case Status::kInProgress:
    case Status::kCancelled:
    case Status::kFailed:
      break;
  }
  throw Error(ErrorKind::kTransport,
              fmt::format("{} {}: {}", request.is_receive ? "receiving from" : "sending to", other,
                          transport::to_string(request.status())));
}

std::string OthersCall::await_resume() const {
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
  return operation_.others_call;
}

// The computation has run, so tensors may have been written. If the operation failed meanwhile, the
// next message throws; if there is no further message, the operation has succeeded.
void Computation::await_resume() {
  if (operation_.compute_error) {
    std::rethrow_exception(std::exchange(operation_.compute_error, nullptr));
  }
}

Turn::Turn(GroupView& group) : operation_(group.operation_) { Scheduler::enter_line(operation_); }

Turn::~Turn() { operation_.engine().scheduler().leave_line(operation_); }

bool Turn::await_ready() const {
  return Scheduler::has_turn(operation_) || operation_.cause().has_value();
}

void Turn::await_resume() const {
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
}

ReceiveTurn::ReceiveTurn(GroupView& group, std::uint32_t from, std::int32_t tag)
    : operation_(group.operation_), from_(from) {
  ticket_.operation = &operation_;
  operation_.group().receive_lines.enter(ticket_, from, tag);
}

ReceiveTurn::~ReceiveTurn() {
  Operation* const next = operation_.group().receive_lines.leave(ticket_);
  if (next != nullptr && next->turn_waiter) {
    next->engine().make_ready(std::exchange(next->turn_waiter, {}), *next);
  }
}

bool ReceiveTurn::await_ready() const {
  return ReceiveLines::is_first(ticket_) || operation_.cause().has_value();
}

void ReceiveTurn::await_suspend(std::coroutine_handle<> waiter) {
  operation_.turn_waiter = waiter;
  operation_.in_line_for = from_;
}

void ReceiveTurn::await_resume() {
  operation_.in_line_for.reset();
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
}

Operation& AnySender::group_operation(GroupView& group) { return group.operation_; }

AnySender::~AnySender() { operation_.engine().forget(*this); }

bool AnySender::waits_like(const AnySender& other) const {
  return tag_ == other.tag_ && &operation_.group() == &other.operation_.group();
}

bool AnySender::lies_there(std::uint32_t rank) const {
  const Group& group = operation_.group();
  const transport::Tag tag = transport::point_to_point_tag(group.id(), rank, tag_);
  return !group.receive_lines.any(rank, tag_) &&
         group.has_header(tag, operation_.engine().transport());
}

bool AnySender::look() {
  const Group& group = operation_.group();
  const Engine& engine = operation_.engine();
  found_.reset();
  bool others = group.size() == 1;
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (lies_there(rank)) {
      found_ = rank;
      return true;
    }
    others = others || (rank != group.rank() && !engine.has_left(group.peer(rank)));
  }
  deserted_ = !others;
  return deserted_;
}

bool AnySender::await_ready() {
  if (operation_.cause()) {
    return true;
  }
  return !operation_.engine().is_watched_like(*this) && look();
}

void AnySender::await_suspend(std::coroutine_handle<> waiter) {
  operation_.takes = false;  // the message that the receive had found was withdrawn
  operation_.turn_waiter = waiter;
  operation_.engine().watch(*this);
}

std::uint32_t AnySender::await_resume() {
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
  if (!found_) {
    throw Error(ErrorKind::kPeerFailed, "every other rank of the group has left");
  }
  operation_.takes = true;
  return *found_;
}

AtGate::AtGate(GroupView& group, Gate& gate)
    : operation_(group.operation_), gate_(gate), here_(std::make_shared<AtGate*>(this)) {}

AtGate::~AtGate() { leave(); }

bool AtGate::await_ready() const {
  return gate_.verdict().has_value() || operation_.cause().has_value();
}

void AtGate::await_suspend(std::coroutine_handle<> waiter) {
  operation_.gate_waiter = waiter;
  Engine& engine = operation_.engine();
  const auto decided = [&engine, weak = std::weak_ptr<AtGate*>(here_)] {
    engine.post([weak] {
      const auto here = weak.lock();
      if (!here) {
        return;
      }
      Operation& operation = (*here)->operation_;
      if (operation.gate_waiter) {
        operation.engine().make_ready(std::exchange(operation.gate_waiter, {}), operation);
      }
    });
  };
  waits_ = gate_.when_decided(decided);
  engine.scheduler().wait_at_gate(operation_);
}

void AtGate::leave() {
  if (!waits_) {
    return;
  }
  gate_.forget(*waits_);
  waits_.reset();
  Scheduler::leave_gate(operation_);
}

// The verdict holds for all operations. An operation that fails after it still commits; an
// operation that fails before it makes the others fail, too.
bool AtGate::await_resume() const {
  const bool happened = gate_.shut();
  if (!happened && operation_.cause()) {
    throw Error(*operation_.cause());
  }
  return happened;
}

std::uint32_t GroupView::rank() const { return operation_.group().rank(); }
std::uint32_t GroupView::size() const { return operation_.group().size(); }
std::uint64_t GroupView::sequence() const { return operation_.sequence(); }
const HostMap& GroupView::hosts() const { return operation_.group().hosts(); }
PerGroupState& GroupView::per_group_state() const { return operation_.group().per_group_state; }
transport::TimePoint GroupView::now() const { return operation_.engine().clock().now(); }
const std::string& GroupView::member(std::uint32_t rank) const {
  return operation_.group().member(rank);
}

Message GroupView::send(std::uint32_t to, std::uint32_t step, ConstBytes data,
                        std::uint32_t chunk) {
  return Message(operation_.send(to, tag_of(to, step, chunk), data));
}

Message GroupView::send_over(std::uint32_t connection, std::uint32_t to, std::uint32_t step,
                             ConstBytes data, std::uint32_t chunk) {
  return Message(operation_.send(to, tag_of(to, step, chunk), data, connection));
}

std::uint32_t GroupView::connections(std::uint32_t to) const {
  return operation_.engine().transport().connections(operation_.group().peer(to));
}

transport::Tag GroupView::tag_of(std::uint32_t to, std::uint32_t step, std::uint32_t chunk) const {
  const Group& group = operation_.group();
  return transport::collective_tag(group.id_at(to), group.rank(), operation_.sequence(), step,
                                   chunk);
}

Message GroupView::recv(std::uint32_t from, std::uint32_t step, Bytes buffer, std::uint32_t chunk) {
  const transport::Tag tag =
      transport::collective_tag(operation_.group().id(), from, operation_.sequence(), step, chunk);
  return Message(operation_.recv(from, tag, buffer));
}

std::uint64_t GroupView::charge(std::uint32_t to, std::uint64_t bytes) {
  return operation_.engine().flow_control().charge(operation_.group(), to, bytes);
}

std::uint32_t GroupView::begin_transfer(std::uint32_t to, std::int32_t tag, std::uint64_t ahead,
                                        std::uint64_t apart) {
  const std::uint32_t serial = operation_.engine().take_serial();
  operation_.transfer = {to, tag, serial, ahead, apart};
  return serial;
}

Message GroupView::send_header(std::uint32_t to, std::int32_t tag, ConstBytes data) {
  const Group& group = operation_.group();
  return Message(
      operation_.send(to, transport::point_to_point_tag(group.id_at(to), group.rank(), tag), data));
}

Message GroupView::recv_header(std::uint32_t from, std::int32_t tag, Bytes buffer) {
  MessageSlot& slot = operation_.recv(from, header_tag(from, tag), buffer);
  slot.is_header = true;
  return Message(slot);
}

void GroupView::leave_unread(std::uint32_t from, std::int32_t tag,
                             std::span<const std::byte> message) {
  Group& group = operation_.group();
  if (!group.failure) {
    group.unread.emplace(header_tag(from, tag), std::vector(message.begin(), message.end()));
  }
  throw Error(operation_.cause().value());
}

std::size_t GroupView::read_again(std::uint32_t from, std::int32_t tag,
                                  std::span<std::byte> buffer) {
  auto& unread = operation_.group().unread;
  const auto found = unread.empty() ? unread.end() : unread.find(header_tag(from, tag));
  if (found == unread.end()) {
    return 0;
  }
  const std::vector<std::byte> message = std::move(found->second);
  unread.erase(found);
  std::memcpy(buffer.data(), message.data(), std::min(buffer.size(), message.size()));
  return message.size();
}

transport::Tag GroupView::header_tag(std::uint32_t from, std::int32_t tag) const {
  return transport::point_to_point_tag(operation_.group().id(), from, tag);
}

std::uint64_t GroupView::send_window() const { return operation_.engine().flow_control().window(); }

void GroupView::matched(std::uint32_t from, std::uint64_t bytes, std::uint64_t window) {
  operation_.engine().flow_control().matched(operation_.group(), from, bytes, window);
}

Message GroupView::hold_payload(std::uint32_t to, std::uint32_t serial, ConstBytes data) {
  const Group& group = operation_.group();
  return Message(operation_.hold(
      to, serial, transport::payload_tag(group.id_at(to), group.rank(), serial), data));
}

void GroupView::clear_payload(std::uint32_t from, std::uint32_t serial) {
  Engine& engine = operation_.engine();
  const transport::Tag tag = transport::payload_tag(operation_.group().id(), from, serial);
  if (!engine.transport().lies_there(tag)) {  // otherwise it was sent as soon as the window allowed
    engine.flow_control().clear(operation_.shared_group(), from, serial);
  }
}

Message GroupView::send_payload(std::uint32_t to, std::uint32_t serial, ConstBytes data) {
  const Group& group = operation_.group();
  return Message(
      operation_.send(to, transport::payload_tag(group.id_at(to), group.rank(), serial), data));
}

Message GroupView::recv_payload(std::uint32_t from, std::uint32_t serial, Bytes buffer) {
  return Message(
      operation_.recv(from, transport::payload_tag(operation_.group().id(), from, serial), buffer));
}

void GroupView::expect_payload(std::uint32_t from, std::uint32_t serial) {
  operation_.announced = transport::payload_tag(operation_.group().id(), from, serial);
  operation_.takes = true;
}

bool GroupView::take_withdrawn(std::uint32_t from, std::int32_t tag, std::uint32_t serial) {
  auto& withdrawn = operation_.group().withdrawn;
  if (withdrawn.empty()) {
    return false;
  }
  const transport::Tag header = header_tag(from, tag);
  const bool found = withdrawn.erase({header, serial}) != 0;
  const auto was_sent_before = [&](const auto& other) {  // serial numbers wrap around
    return other.first == header && static_cast<std::int32_t>(other.second - serial) < 0;
  };
  auto next = withdrawn.lower_bound({header, 0});
  while (next != withdrawn.end() && was_sent_before(*next)) {
    next = withdrawn.erase(next);
  }
  return found;
}

bool GroupView::any_withdrawn(std::uint32_t from, std::int32_t tag) const {
  const auto& withdrawn = operation_.group().withdrawn;
  const auto next = withdrawn.lower_bound({header_tag(from, tag), 0});
  return next != withdrawn.end() && next->first == header_tag(from, tag);
}

std::span<std::byte> GroupView::buffer(std::size_t bytes) {
  return {operation_.buffer(bytes), bytes};
}

}  // namespace gtopk::engine
