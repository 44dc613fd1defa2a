#include "src/collectives/ring.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "src/collectives/header.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/ring_order.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// The number of receives posted at once, including the awaited one.
constexpr std::size_t kWindow = 4;
/// How far sends may run ahead of the awaited receive. More would keep no connection busier. With
/// several connections, a slow one must not stop the others.
constexpr std::size_t kAhead = 16;
constexpr std::size_t kAheadOfEach = 4;
constexpr std::size_t kMostAhead = 128;

/// At most N messages in flight in one direction.
template <std::size_t N>
class Flight {
 public:
  /// Messages known to have ended.
  [[nodiscard]] std::uint64_t ended() const { return ended_; }
  [[nodiscard]] std::uint64_t begun() const { return begun_; }
  [[nodiscard]] bool full() const { return begun_ - ended_ == N; }
  [[nodiscard]] bool empty() const { return begun_ == ended_; }
  void begin(Message message) { under_way_[begun_++ % N].emplace(std::move(message)); }
  [[nodiscard]] Message& oldest() { return *under_way_[ended_ % N]; }
  void end_oldest() { under_way_[ended_++ % N].reset(); }

 private:
  std::array<std::optional<Message>, N> under_way_;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
};

/// Moves the pieces of `order` round the ring. A Load says where pieces are and what happens to
/// them:
///   Bytes leaves(RingPiece), lands(RingPiece)
///   std::uint64_t reads_until(RingPiece)  how many sends, counted from the first, must have ended
///                                         before this piece may overwrite what they read
///   void arrived(RingPiece)
/// Ranks do not wait in a cycle: the next rank posts the receive for a send awaited here as soon
/// as it has posted as many as this one.
template <class Load>
Task<void> go_round(GroupView& group, Ring ring, RingOrder order, Load load,
                    std::uint32_t first_step) {
  const std::uint32_t next = ring.ranks[(ring.place + 1) % ring.size()];
  const std::uint32_t previous = ring.ranks[(ring.place + ring.size() - 1) % ring.size()];
  const std::uint64_t messages = order.messages();
  const std::uint64_t ahead =
      std::clamp<std::uint64_t>(kAheadOfEach * group.connections(next), kAhead, kMostAhead);
  Flight<kWindow> incoming;
  Flight<kMostAhead> outgoing;

  for (std::uint64_t message = 0; message < messages; ++message) {
    while (incoming.begun() < messages && !incoming.full()) {
      const RingPiece piece = order.received(incoming.begun());
      const std::uint64_t reads_until = load.reads_until(piece);
      if (reads_until > outgoing.begun()) {
        break;
      }
      while (outgoing.ended() < reads_until) {
        Message& oldest = outgoing.oldest();
        co_await oldest;
        outgoing.end_oldest();
      }
      incoming.begin(
          group.recv(previous, first_step + piece.step, load.lands(piece), piece.number));
    }
    const std::uint64_t may_leave = std::min({messages, message + order.pieces(), message + ahead});
    while (outgoing.begun() < may_leave) {
      if (outgoing.begun() - outgoing.ended() == ahead) {
        Message& oldest = outgoing.oldest();
        co_await oldest;
        outgoing.end_oldest();
      }
      const RingPiece piece = order.sent(outgoing.begun());
      outgoing.begin(group.send_dealt(next, first_step + piece.step, load.leaves(piece),
                                      piece.number, messages / order.pieces(), order.pieces()));
    }
    Message& expected = incoming.oldest();
    const std::size_t received = co_await expected;
    incoming.end_oldest();
    const RingPiece piece = order.received(message);
    require_length(received, load.lands(piece).size(), group, previous);
    load.arrived(piece);
  }
  while (!outgoing.empty()) {
    Message& oldest = outgoing.oldest();
    co_await oldest;
    outgoing.end_oldest();
  }
}

/// In the reducing steps (the first n-1), a piece arrives in one of kWindow buffers outside the
/// parts and is then added. In the other steps it is final and arrives in its place.
class AllReduceLoad {
 public:
  AllReduceLoad(GroupView& group, std::uint32_t ranks, RingParts parts, DataType type, ReduceOp op)
      : parts_(parts),
        reducing_steps_(ranks - 1),
        type_(type),
        op_(op),
        piece_capacity_(parts.piece_capacity()),
        workspace_(group.buffer(kWindow * piece_capacity_)) {}

  [[nodiscard]] std::span<std::byte> leaves(RingPiece piece) const { return place(piece); }
  [[nodiscard]] std::span<std::byte> lands(RingPiece piece) const {
    const std::span<std::byte> at = place(piece);
    if (!reduces(piece)) {
      return at;
    }
    return workspace_.subspan((index(piece) % kWindow) * piece_capacity_, at.size());
  }
  /// A final piece overwrites memory that the send of the same part, n-1 steps ago, reads.
  [[nodiscard]] std::uint64_t reads_until(RingPiece piece) const {
    return reduces(piece) ? 0 : index(piece) + 1 - reducing_steps_ * parts_.pieces();
  }
  void arrived(RingPiece piece) const {
    if (!reduces(piece)) {
      return;
    }
    const std::span<std::byte> mine = place(piece);
    reduce(mine.data(), lands(piece).data(), mine.data(), mine.size() / size_of(type_), type_, op_);
  }

 private:
  [[nodiscard]] bool reduces(RingPiece piece) const { return piece.step < reducing_steps_; }
  [[nodiscard]] std::uint64_t index(RingPiece piece) const {
    return piece.step * parts_.pieces() + piece.number;
  }
  [[nodiscard]] std::span<std::byte> place(RingPiece piece) const {
    return parts_.piece(piece.part, piece.number);
  }

  RingParts parts_;
  std::uint32_t reducing_steps_;
  DataType type_;
  ReduceOp op_;
  std::size_t piece_capacity_;
  std::span<std::byte> workspace_;
};

/// A sum that is passed on stays in its own buffer until it has been sent; the buffers of two steps
/// alternate.
class ReduceScatterLoad {
 public:
  ReduceScatterLoad(GroupView& group, std::uint32_t ranks, RingParts parts, RingParts output,
                    DataType type, ReduceOp op)
      : parts_(parts),
        output_(output),
        last_step_(ranks - 2),
        type_(type),
        op_(op),
        piece_capacity_(parts.piece_capacity()),
        workspace_(group.buffer(std::min(ranks - 1, 2U) * parts.pieces() * piece_capacity_)) {}

  [[nodiscard]] std::span<std::byte> leaves(RingPiece piece) const {
    return piece.step == 0 ? mine(piece) : sum(piece, piece.step - 1);
  }
  [[nodiscard]] std::span<std::byte> lands(RingPiece piece) const { return sum(piece, piece.step); }
  /// A piece overwrites memory that the previous step's send reads, which passes on what arrived
  /// two steps ago.
  [[nodiscard]] std::uint64_t reads_until(RingPiece piece) const {
    return piece.step < 2 ? 0 : (piece.step - 1) * parts_.pieces() + piece.number + 1;
  }
  void arrived(RingPiece piece) const {
    const std::span<std::byte> so_far = lands(piece);
    std::byte* const into =
        piece.step == last_step_ ? output_.piece(0, piece.number).data() : so_far.data();
    reduce(into, so_far.data(), mine(piece).data(), so_far.size() / size_of(type_), type_, op_);
  }

 private:
  [[nodiscard]] std::span<std::byte> mine(RingPiece piece) const {
    return parts_.piece(piece.part, piece.number);
  }
  [[nodiscard]] std::span<std::byte> sum(RingPiece piece, std::uint32_t step) const {
    const std::size_t slot = (step % 2) * parts_.pieces() + piece.number;
    return workspace_.subspan(slot * piece_capacity_, mine(piece).size());
  }

  RingParts parts_;
  RingParts output_;
  std::uint32_t last_step_;
  DataType type_;
  ReduceOp op_;
  std::size_t piece_capacity_;
  std::span<std::byte> workspace_;
};

/// Each part has its place and stays there.
struct AllGatherLoad {
  std::span<const Bytes> buffers;
  std::size_t per_part;

  [[nodiscard]] Bytes leaves(RingPiece piece) const {
    return buffers[piece.part * per_part + piece.number];
  }
  [[nodiscard]] Bytes lands(RingPiece piece) const { return leaves(piece); }
  [[nodiscard]] static std::uint64_t reads_until(RingPiece /*piece*/) { return 0; }
  static void arrived(RingPiece /*piece*/) {}
};

/// The order in which sums travel: the sum of a place starts with the rank after it and ends at the
/// place.
RingOrder of_sums(Ring ring, std::uint32_t steps, const RingParts& parts) {
  return {ring.size(), ring.place, ring.size() - 1, steps, parts.pieces()};
}

}  // namespace

Task<void> ring_all_reduce(GroupView& group, Ring ring, RingParts parts, DataType type, ReduceOp op,
                           std::uint32_t first_step) {
  const AllReduceLoad load(group, ring.size(), parts, type, op);
  return go_round(group, ring, of_sums(ring, 2 * (ring.size() - 1), parts), load, first_step);
}

Task<void> ring_reduce(GroupView& group, Ring ring, RingParts parts, DataType type, ReduceOp op,
                       std::uint32_t first_step) {
  const AllReduceLoad load(group, ring.size(), parts, type, op);
  return go_round(group, ring, of_sums(ring, ring.size() - 1, parts), load, first_step);
}

Task<void> ring_reduce_scatter(GroupView& group, Ring ring, RingParts parts, RingParts output,
                               DataType type, ReduceOp op, std::uint32_t first_step) {
  const ReduceScatterLoad load(group, ring.size(), parts, output, type, op);
  return go_round(group, ring, of_sums(ring, ring.size() - 1, parts), load, first_step);
}

Task<void> ring_all_gather(GroupView& group, Ring ring, std::span<const Bytes> buffers,
                           std::uint32_t first_step) {
  const std::size_t per_part = buffers.size() / ring.size();
  const RingOrder order(ring.size(), ring.place, 0, ring.size() - 1, per_part);
  return go_round(group, ring, order, AllGatherLoad{buffers, per_part}, first_step);
}

}  // namespace gtopk::collectives
