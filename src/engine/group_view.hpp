// Engine: what an algorithm sees of a group: ranks, messages to await, buffers, and a thread for
// long arithmetic.
//
//   Message incoming = group.recv(partner, step, buffer);  // posted here
//   Message outgoing = group.send(partner, step, list);    // on its way here
//   const std::size_t bytes = co_await incoming;           // throws gtopk::Error
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "gtopk/gate.hpp"
#include "src/engine/host_map.hpp"
#include "src/engine/operation.hpp"
#include "src/engine/per_group_state.hpp"
#include "src/engine/receive_lines.hpp"

namespace gtopk::engine {

/// One message in flight. Awaiting returns the bytes received (sent, for a send). It may be dropped
/// without being awaited; the operation keeps the memory that the network still needs.
class [[nodiscard]] Message {
 public:
  explicit Message(MessageSlot& slot) : slot_(&slot) {}
  Message(Message&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Message& operator=(Message&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  ~Message() {
    if (slot_ != nullptr) {
      slot_->operation->release(*slot_);
    }
  }

  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter) { slot_->waiter = waiter; }
  std::size_t await_resume();

 private:
  MessageSlot* slot_;
};

/// Awaiting asks another rank what it called instead of this collective, as text.
class [[nodiscard]] OthersCall {
 public:
  OthersCall(Operation& operation, std::uint32_t rank) : operation_(operation), rank_(rank) {}
  [[nodiscard]] bool await_ready() const { return operation_.cause().has_value(); }
  void await_suspend(std::coroutine_handle<> waiter) { operation_.ask(rank_, waiter); }
  [[nodiscard]] std::string await_resume() const;

 private:
  Operation& operation_;
  std::uint32_t rank_;
};

/// Awaiting runs `work`, if any, on the engine's executor and rethrows its exception.
class [[nodiscard]] Computation {
 public:
  Computation(Operation& operation, std::function<void()> work)
      : operation_(operation), work_(std::move(work)) {}
  [[nodiscard]] bool await_ready() const { return !work_; }
  void await_suspend(std::coroutine_handle<> waiter) {
    operation_.compute(waiter, std::move(work_));
  }
  void await_resume();

 private:
  Operation& operation_;
  std::function<void()> work_;
};

/// A place in the queue of operations that need the group's links exclusively. If two operations
/// shared the links, both would take twice as long and delay everything that waits for the first.
/// Construct it before the first await. Operations start in the same order on every rank, so there
/// is no deadlock.
class [[nodiscard]] Turn {
 public:
  explicit Turn(GroupView& group);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  Turn(Turn&&) = delete;
  Turn& operator=(Turn&&) = delete;
  /// Passes the links to the next operation.
  ~Turn();

  // Awaiting ends when every operation before this one has released its place.
  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter) { operation_.turn_waiter = waiter; }
  void await_resume() const;

 private:
  Operation& operation_;
};

/// A place in the queue of receives of one sender and tag. Awaiting ends when it is at the front.
class [[nodiscard]] ReceiveTurn {
 public:
  ReceiveTurn(GroupView& group, std::uint32_t from, std::int32_t tag);
  ReceiveTurn(const ReceiveTurn&) = delete;
  ReceiveTurn& operator=(const ReceiveTurn&) = delete;
  ReceiveTurn(ReceiveTurn&&) = delete;
  ReceiveTurn& operator=(ReceiveTurn&&) = delete;
  /// Resumes the next receive.
  ~ReceiveTurn();

  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter);
  void await_resume();

 private:
  Operation& operation_;
  std::uint32_t from_;
  ReceiveLines::QueueTicket ticket_;
};

/// A receive of a tag from any sender. Awaiting returns the lowest rank with an unexpected message
/// that no receive naming that rank waits for. Waiters are resumed in call order; a waiter that
/// finds the message gone (still_there()) may await again.
class [[nodiscard]] AnySender {
 public:
  AnySender(GroupView& group, std::int32_t tag) : operation_(group_operation(group)), tag_(tag) {}
  AnySender(const AnySender&) = delete;
  AnySender& operator=(const AnySender&) = delete;
  AnySender(AnySender&&) = delete;
  AnySender& operator=(AnySender&&) = delete;
  ~AnySender();

  [[nodiscard]] bool await_ready();
  void await_suspend(std::coroutine_handle<> waiter);
  /// Throws Error{kPeerFailed} if all other ranks have left.
  [[nodiscard]] std::uint32_t await_resume();

  /// Whether the message that was found is still there.
  [[nodiscard]] bool still_there() const { return lies_there(found_.value()); }

  // The following is used by the engine.
  /// Whether the waiter should be resumed.
  [[nodiscard]] bool look();
  [[nodiscard]] Operation& operation() const { return operation_; }
  [[nodiscard]] bool waits_like(const AnySender& other) const;

 private:
  [[nodiscard]] bool lies_there(std::uint32_t rank) const;
  static Operation& group_operation(GroupView& group);

  Operation& operation_;
  std::int32_t tag_;
  std::optional<std::uint32_t> found_;
  bool deserted_ = false;
};

/// An operation's arrival at a gate. Awaiting returns the verdict: whether the whole step has
/// happened. While waiting, an operation gives up its place in flight to later operations, because
/// the gate may be waiting for them.
class [[nodiscard]] AtGate {
 public:
  AtGate(GroupView& group, Gate& gate);
  AtGate(const AtGate&) = delete;
  AtGate& operator=(const AtGate&) = delete;
  AtGate(AtGate&&) = delete;
  AtGate& operator=(AtGate&&) = delete;
  ~AtGate();

  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter);
  [[nodiscard]] bool await_resume() const;

 private:
  void leave();

  Operation& operation_;
  Gate& gate_;
  std::optional<Gate::Waiters::iterator> waits_;
  /// Shared with callbacks that the gate posts, so that they can tell whether this object still
  /// exists.
  std::shared_ptr<AtGate*> here_;
};

class GroupView {
 public:
  explicit GroupView(Operation& operation) : operation_(operation) {}

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::uint32_t size() const;
  [[nodiscard]] std::uint64_t sequence() const;
  /// The fingerprint of the arguments on which all ranks must agree; call() is their text.
  [[nodiscard]] std::uint64_t fingerprint() const { return operation_.fingerprint(); }
  [[nodiscard]] std::string call() const { return operation_.call(); }
  /// Replaces the arguments on which all ranks must agree, once the call's meaning is resolved.
  void agree_on(const Agreement& agreement) { operation_.agree_on(agreement); }
  /// What another rank called, as text.
  [[nodiscard]] OthersCall called_by(std::uint32_t rank) { return {operation_, rank}; }
  /// A member's description: "rank 3 (host node7, pid 4711)".
  [[nodiscard]] const std::string& member(std::uint32_t rank) const;
  /// Which ranks share a host; the map is the same on every rank.
  [[nodiscard]] const HostMap& hosts() const;
  /// Objects that collectives keep with the group.
  [[nodiscard]] PerGroupState& per_group_state() const;
  /// The current time of the engine's clock.
  [[nodiscard]] transport::TimePoint now() const;
  /// Notifies observers that the operation enters a phase; `phase` must have static lifetime.
  void enter(std::string_view phase) { operation_.enter(phase); }

  /// Posts a message of this collective; (sender, step, chunk) identifies it, provided that steps
  /// and chunks in flight are at most 256 apart.
  [[nodiscard]] Message send(std::uint32_t to, std::uint32_t step, ConstBytes data,
                             std::uint32_t chunk = 0);
  /// The same over one of the connections to that rank, modulo their number, or over whichever is
  /// free (transport::kAnyConnection). If a call has several messages of the same (step, chunk)
  /// modulo 256, all must use the same connection, to keep their order.
  [[nodiscard]] Message send_over(std::uint32_t connection, std::uint32_t to, std::uint32_t step,
                                  ConstBytes data, std::uint32_t chunk);
  /// The same for one of many chunks of a step. Any free connection carries it. If the call has so
  /// many `steps`, or steps have so many `chunks`, that tags repeat, chunks use connections
  /// round-robin.
  [[nodiscard]] Message send_dealt(std::uint32_t to, std::uint32_t step, ConstBytes data,
                                   std::uint32_t chunk, std::uint64_t steps, std::uint64_t chunks) {
    const bool repeats = steps > 256 || chunks > 256;
    return send_over(repeats ? chunk % 256 : transport::kAnyConnection, to, step, data, chunk);
  }
  /// The number of connections to that rank.
  [[nodiscard]] std::uint32_t connections(std::uint32_t to) const;
  [[nodiscard]] Message recv(std::uint32_t from, std::uint32_t step, Bytes buffer,
                             std::uint32_t chunk = 0);

  // The following are the parts of a point-to-point message; engine/point_to_point.hpp combines
  // them.
  /// Returns the bytes that such a message to that rank counts from now on (see FlowControl), or 0
  /// if it may not be sent ahead of its receive.
  [[nodiscard]] std::uint64_t charge(std::uint32_t to, std::uint64_t bytes);
  /// Begins a message to that rank and returns its serial number. The message counts `ahead` bytes,
  /// and `apart` bytes are sent separately from its header. If the operation fails before the
  /// message is received, the receiver is told to skip it.
  [[nodiscard]] std::uint32_t begin_transfer(std::uint32_t to, std::int32_t tag,
                                             std::uint64_t ahead, std::uint64_t apart);
  /// Whether the message's header could not be sent.
  [[nodiscard]] bool transfer_lost() const { return !operation_.transfer.has_value(); }
  [[nodiscard]] std::uint64_t send_window() const;
  [[nodiscard]] Message send_header(std::uint32_t to, std::int32_t tag, ConstBytes data);
  /// Awaiting returns the length of the message, which may exceed the buffer, even if the operation
  /// has failed in the meantime; see leave_unread().
  [[nodiscard]] Message recv_header(std::uint32_t from, std::int32_t tag, Bytes buffer);
  [[nodiscard]] bool failed() const { return operation_.cause().has_value(); }
  /// Leaves a message that has come after the operation failed to the next receive, and throws.
  [[noreturn]] void leave_unread(std::uint32_t from, std::int32_t tag,
                                 std::span<const std::byte> message);
  /// Copies as much as fits of a message that was left unread. Returns its length, or 0 if there is
  /// none.
  [[nodiscard]] std::size_t read_again(std::uint32_t from, std::int32_t tag,
                                       std::span<std::byte> buffer);
  /// Tells the sender, if that window is its own, in time how much of it is free again.
  void matched(std::uint32_t from, std::uint64_t bytes, std::uint64_t window);
  [[nodiscard]] Message send_payload(std::uint32_t to, std::uint32_t serial, ConstBytes data);
  /// Sends the payload once the receiver clears it.
  [[nodiscard]] Message hold_payload(std::uint32_t to, std::uint32_t serial, ConstBytes data);
  void clear_payload(std::uint32_t from, std::uint32_t serial);
  [[nodiscard]] Message recv_payload(std::uint32_t from, std::uint32_t serial, Bytes buffer);
  /// If the operation fails before that payload arrives, the payload is discarded on arrival.
  void expect_payload(std::uint32_t from, std::uint32_t serial);
  /// Whether the sender has withdrawn that message; clears its mark and the marks of earlier
  /// messages.
  [[nodiscard]] bool take_withdrawn(std::uint32_t from, std::int32_t tag, std::uint32_t serial);
  /// Whether any message of that sender and tag is marked as withdrawn.
  [[nodiscard]] bool any_withdrawn(std::uint32_t from, std::int32_t tag) const;

  /// Memory that lives as long as the network needs it; 64-byte aligned, contents undefined.
  [[nodiscard]] std::span<std::byte> buffer(std::size_t bytes);

  [[nodiscard]] Computation compute(std::function<void()> work) {
    return Computation(operation_, std::move(work));
  }
  /// Runs `work` on that many elements. If they are few, it runs at once on this thread, because
  /// passing it to another thread would take longer.
  template <class Work>
  [[nodiscard]] Computation compute(std::uint64_t elements, Work work) {
    if (elements > kFewElements) {
      return compute(std::move(work));
    }
    work();
    return Computation(operation_, nullptr);
  }
  static constexpr std::uint64_t kFewElements = 1U << 15U;

 private:
  friend class Turn;
  friend class ReceiveTurn;
  friend class AnySender;
  friend class AtGate;
  friend class ExternalWork;
  [[nodiscard]] transport::Tag tag_of(std::uint32_t to, std::uint32_t step,
                                      std::uint32_t chunk) const;
  /// The tag of headers from that rank.
  [[nodiscard]] transport::Tag header_tag(std::uint32_t from, std::int32_t tag) const;

  Operation& operation_;
};

}  // namespace gtopk::engine
