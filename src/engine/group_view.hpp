// Engine: what an algorithm sees of a group: ranks, messages to await, buffers, and a thread for
// long arithmetic.
//
//   Message incoming = group.recv(partner, step, room);   // posted here
//   Message outgoing = group.send(partner, step, list);   // on its way here
//   const std::size_t bytes = co_await incoming;          // throws gtopk::Error
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
#include "src/engine/keepsakes.hpp"
#include "src/engine/operation.hpp"
#include "src/engine/receive_lines.hpp"

namespace gtopk::engine {

/// One message under way. Awaiting gives the bytes received (sent, for a send). May be dropped
/// unawaited: the operation keeps what the network still needs.
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
    if (slot_ != nullptr) slot_->operation->release(*slot_);
  }

  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter) { slot_->waiter = waiter; }
  std::size_t await_resume();

 private:
  MessageSlot* slot_;
};

/// Awaiting asks another rank what it called as this collective, in words.
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

/// Awaiting runs `work`, if there is any, on the engine's executor and rethrows what it threw.
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

/// A place in the line of operations that want the group's links for themselves: two that share
/// them both take twice as long, and delay whoever waits for the first. To be taken before anything
/// is awaited: operations start in the same order on every rank, so nobody waits in a circle.
class [[nodiscard]] Turn {
 public:
  explicit Turn(GroupView& group);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  Turn(Turn&&) = delete;
  Turn& operator=(Turn&&) = delete;
  /// Lets the next one go on.
  ~Turn();

  // Awaiting ends when every operation before this one has given its place up.
  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter) { operation_.turn_waiter = waiter; }
  void await_resume() const;

 private:
  Operation& operation_;
};

/// A place in line among the receives of one sender and tag. Awaiting ends when it is the first.
class [[nodiscard]] ReceiveTurn {
 public:
  ReceiveTurn(GroupView& group, std::uint32_t from, std::int32_t tag);
  ReceiveTurn(const ReceiveTurn&) = delete;
  ReceiveTurn& operator=(const ReceiveTurn&) = delete;
  ReceiveTurn(ReceiveTurn&&) = delete;
  ReceiveTurn& operator=(ReceiveTurn&&) = delete;
  /// Lets the next one go on.
  ~ReceiveTurn();

  [[nodiscard]] bool await_ready() const;
  void await_suspend(std::coroutine_handle<> waiter);
  void await_resume();

 private:
  Operation& operation_;
  std::uint32_t from_;
  ReceiveLines::Place place_;
};

/// A place among those who wait for a message under a tag from whoever sends one first. Awaiting
/// gives a rank whose message lies there for no other receive, the lowest of several. Of those who
/// wait for it the first is resumed first; for who comes second it is no longer there, and it may
/// be awaited again.
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
  /// Throws Error{kPeerFailed} where all other ranks have left.
  [[nodiscard]] std::uint32_t await_resume();

  /// Whether what was found still lies there.
  [[nodiscard]] bool still_there() const { return lies_there(found_.value()); }

  // For the engine.
  /// Whether there is something to resume for.
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

/// What has arrived at a gate. Awaiting gives its verdict: whether the whole step has happened.
/// Operations that wait there give their places in flight to later ones, which the gate may be
/// waiting for.
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
  /// Goes with this: what the gate has posted finds out whether anybody is still there.
  std::shared_ptr<AtGate*> here_;
};

class GroupView {
 public:
  explicit GroupView(Operation& operation) : operation_(operation) {}

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::uint32_t size() const;
  [[nodiscard]] std::uint64_t sequence() const;
  /// Of what all ranks must agree on; and that in words.
  [[nodiscard]] std::uint64_t fingerprint() const { return operation_.fingerprint(); }
  [[nodiscard]] std::string call() const { return operation_.call(); }
  /// From here on all ranks must agree on this as well: what the call has been found to mean.
  void agree_on(const Agreement& agreement) { operation_.agree_on(agreement); }
  /// What another rank called, in words.
  [[nodiscard]] OthersCall called_by(std::uint32_t rank) { return {operation_, rank}; }
  /// "rank 3 (host node7, pid 4711)"
  [[nodiscard]] const std::string& member(std::uint32_t rank) const;
  /// Which ranks share a host, the same on every rank.
  [[nodiscard]] const HostMap& hosts() const;
  /// What collectives keep with the group.
  [[nodiscard]] Keepsakes& keepsakes() const;
  /// By the engine's clock.
  [[nodiscard]] transport::TimePoint now() const;
  /// From here on the operation is in that phase, for observers; `phase` must live for ever.
  void enter(std::string_view phase) { operation_.enter(phase); }

  /// A message of this collective; (sender, step, chunk) names it among those of the collective, as
  /// long as at most 256 steps or chunks are apart.
  [[nodiscard]] Message send(std::uint32_t to, std::uint32_t step, std::span<const std::byte> data,
                             std::uint32_t chunk = 0);
  [[nodiscard]] Message recv(std::uint32_t from, std::uint32_t step, std::span<std::byte> room,
                             std::uint32_t chunk = 0);

  // The parts of a point-to-point message; engine/point_to_point.hpp puts them together.
  /// The serial number of a message to that rank. Should the operation fail with it not taken, the
  /// receiver is told to pass over it.
  [[nodiscard]] std::uint32_t begin_transfer(std::uint32_t to);
  [[nodiscard]] Message send_header(std::uint32_t to, std::int32_t tag,
                                    std::span<const std::byte> data);
  [[nodiscard]] Message recv_header(std::uint32_t from, std::int32_t tag,
                                    std::span<std::byte> room);
  [[nodiscard]] Message send_payload(std::uint32_t to, std::uint32_t serial,
                                     std::span<const std::byte> data);
  [[nodiscard]] Message recv_payload(std::uint32_t from, std::uint32_t serial,
                                     std::span<std::byte> room);
  /// Should the operation fail before it has that payload, it is discarded when it comes.
  void expect_payload(std::uint32_t from, std::uint32_t serial);
  /// Whether the sender has given that message up. Says so once.
  [[nodiscard]] bool take_withdrawn(std::uint32_t from, std::uint32_t serial);

  /// Memory that lives as long as the network may need it, aligned to 64 bytes, contents undefined.
  [[nodiscard]] std::span<std::byte> buffer(std::size_t bytes);

  [[nodiscard]] Computation compute(std::function<void()> work) {
    return Computation(operation_, std::move(work));
  }
  /// Work on so many elements. On few of them it is done here and now: handing it to another thread
  /// would take longer.
  template <class Work>
  [[nodiscard]] Computation compute(std::uint64_t elements, Work work) {
    if (elements > kFewElements) return compute(std::move(work));
    work();
    return Computation(operation_, nullptr);
  }
  static constexpr std::uint64_t kFewElements = 1U << 15U;

 private:
  friend class Turn;
  friend class ReceiveTurn;
  friend class AnySender;
  friend class AtGate;
  Operation& operation_;
};

}  // namespace gtopk::engine
