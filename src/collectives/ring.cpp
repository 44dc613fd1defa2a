#include "src/collectives/ring.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/ring_order.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// Receives posted at once, including the awaited one.
constexpr std::size_t kWindow = 4;
/// How far sends may run ahead of the awaited receive. More would keep no link busier.
constexpr std::size_t kAhead = 16;

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

/// Moves the pieces of `order` round the ring. Load says where they lie and what becomes of them:
///   Bytes leaves(RingPiece), lands(RingPiece)
///   std::uint64_t reads_until(RingPiece)  how many sends, counted from the first, must have ended
///                                         before this piece may overwrite what they read
///   void arrived(RingPiece)
/// No cycle of waiting ranks: a send awaited here has its receive posted by the next rank as soon
/// as that rank has posted as many as this one.
template <class Load>
Task<void> go_round(GroupView& group, RingOrder order, Load load, std::uint32_t first_step) {
  const std::uint32_t next = (group.rank() + 1) % group.size();
  const std::uint32_t previous = (group.rank() + group.size() - 1) % group.size();
  const std::uint64_t messages = order.messages();
  Flight<kWindow> incoming;
  Flight<kAhead> outgoing;

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
    const std::uint64_t may_leave =
        std::min({messages, message + order.pieces(), message + std::uint64_t{kAhead}});
    while (outgoing.begun() < may_leave) {
      if (outgoing.full()) {
        Message& oldest = outgoing.oldest();
        co_await oldest;
        outgoing.end_oldest();
      }
      const RingPiece piece = order.sent(outgoing.begun());
      outgoing.begin(
          group.send_dealt(next, first_step + piece.step, load.leaves(piece), piece.number));
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

std::uint64_t longest_stretch(std::uint64_t longest, std::uint64_t pieces) {
  return (longest + pieces - 1) / pieces;
}

/// In the reducing steps (the first P-1) a piece arrives in one of kWindow buffers beside the
/// tensor, and is then added; in the others it is final, and arrives in its place.
class AllReduceLoad {
 public:
  AllReduceLoad(GroupView& group, std::byte* data, std::uint64_t d, DataType type, ReduceOp op,
                std::uint64_t pieces)
      : data_(data),
        d_(d),
        ranks_(group.size()),
        type_(type),
        op_(op),
        element_(size_of(type)),
        pieces_(pieces),
        room_(longest_stretch((d + ranks_ - 1) / ranks_, pieces) * element_),
        rooms_(group.buffer(kWindow * room_)) {}

  [[nodiscard]] std::span<std::byte> leaves(RingPiece piece) const { return place(piece); }
  [[nodiscard]] std::span<std::byte> lands(RingPiece piece) const {
    const std::span<std::byte> at = place(piece);
    if (!reduces(piece)) {
      return at;
    }
    return rooms_.subspan((index(piece) % kWindow) * room_, at.size());
  }
  /// A final piece lands where the send of P-1 steps ago, of the same part, reads.
  [[nodiscard]] std::uint64_t reads_until(RingPiece piece) const {
    return reduces(piece) ? 0 : index(piece) + 1 - (ranks_ - 1) * pieces_;
  }
  void arrived(RingPiece piece) const {
    if (!reduces(piece)) {
      return;
    }
    const std::span<std::byte> mine = place(piece);
    reduce(mine.data(), lands(piece).data(), mine.data(), mine.size() / element_, type_, op_);
  }

 private:
  [[nodiscard]] bool reduces(RingPiece piece) const { return piece.step < ranks_ - 1; }
  [[nodiscard]] std::uint64_t index(RingPiece piece) const {
    return piece.step * pieces_ + piece.number;
  }
  [[nodiscard]] std::span<std::byte> place(RingPiece piece) const {
    const std::uint64_t begin = chunk_begin(d_, ranks_, piece.part);
    const Stretch stretch =
        stretch_of(chunk_begin(d_, ranks_, piece.part + 1) - begin, piece.number, pieces_);
    return {data_ + (begin + stretch.begin) * element_, stretch.size * element_};
  }

  std::byte* data_;
  std::uint64_t d_;
  std::uint32_t ranks_;
  DataType type_;
  ReduceOp op_;
  std::size_t element_;
  std::uint64_t pieces_;
  std::size_t room_;
  std::span<std::byte> rooms_;
};

/// A sum that is passed on stays in a buffer of its own until it has been sent; the buffers of two
/// steps alternate.
class ReduceScatterLoad {
 public:
  ReduceScatterLoad(GroupView& group, std::span<const Segment> parts, void* output, DataType type,
                    ReduceOp op, std::uint64_t pieces, std::uint64_t longest)
      : parts_(parts),
        output_(static_cast<std::byte*>(output)),
        last_step_(group.size() - 2),
        type_(type),
        op_(op),
        element_(size_of(type)),
        pieces_(pieces),
        room_(longest_stretch(longest, pieces) * element_),
        rooms_(group.buffer(std::min(group.size() - 1, 2U) * pieces * room_)) {}

  [[nodiscard]] std::span<std::byte> leaves(RingPiece piece) const {
    return piece.step == 0 ? mine(piece) : sum(piece, piece.step - 1);
  }
  [[nodiscard]] std::span<std::byte> lands(RingPiece piece) const { return sum(piece, piece.step); }
  /// It lands where the send of the previous step reads, which passes on what came two steps ago.
  [[nodiscard]] std::uint64_t reads_until(RingPiece piece) const {
    return piece.step < 2 ? 0 : (piece.step - 1) * pieces_ + piece.number + 1;
  }
  void arrived(RingPiece piece) const {
    const std::span<std::byte> so_far = lands(piece);
    const std::size_t begin = stretch(piece).begin * element_;
    std::byte* const into = piece.step == last_step_ ? output_ + begin : so_far.data();
    reduce(into, so_far.data(), mine(piece).data(), so_far.size() / element_, type_, op_);
  }

 private:
  [[nodiscard]] Stretch stretch(RingPiece piece) const {
    return stretch_of(parts_[piece.part].size, piece.number, pieces_);
  }
  [[nodiscard]] std::span<std::byte> mine(RingPiece piece) const {
    const Stretch at = stretch(piece);
    return {static_cast<std::byte*>(parts_[piece.part].data) + at.begin * element_,
            at.size * element_};
  }
  [[nodiscard]] std::span<std::byte> sum(RingPiece piece, std::uint32_t step) const {
    const std::size_t room = (step % 2) * pieces_ + piece.number;
    return rooms_.subspan(room * room_, stretch(piece).size * element_);
  }

  std::span<const Segment> parts_;
  std::byte* output_;
  std::uint32_t last_step_;
  DataType type_;
  ReduceOp op_;
  std::size_t element_;
  std::uint64_t pieces_;
  std::size_t room_;
  std::span<std::byte> rooms_;
};

/// Each part has its place and stays there.
struct AllGatherLoad {
  std::span<const Bytes> rooms;

  [[nodiscard]] Bytes leaves(RingPiece piece) const { return rooms[piece.part]; }
  [[nodiscard]] Bytes lands(RingPiece piece) const { return rooms[piece.part]; }
  [[nodiscard]] static std::uint64_t reads_until(RingPiece /*piece*/) { return 0; }
  static void arrived(RingPiece /*piece*/) {}
};

}  // namespace

Task<void> ring_all_reduce(GroupView& group, void* data, std::uint64_t d, DataType type,
                           ReduceOp op, std::uint32_t first_step) {
  const std::uint32_t ranks = group.size();
  const std::uint64_t pieces = pieces_of((d + ranks - 1) / ranks * size_of(type), kPieceBytes);
  const RingOrder order(ranks, group.rank(), ranks - 1, 2 * (ranks - 1), pieces);
  const AllReduceLoad load(group, static_cast<std::byte*>(data), d, type, op, pieces);
  return go_round(group, order, load, first_step);
}

Task<void> ring_reduce_scatter(GroupView& group, std::span<const Segment> parts, void* output,
                               DataType type, ReduceOp op, std::uint32_t first_step) {
  const std::uint32_t ranks = group.size();
  const std::uint64_t longest = std::ranges::max(parts, {}, &Segment::size).size;
  const std::uint64_t pieces = pieces_of(longest * size_of(type), kPieceBytes);
  const RingOrder order(ranks, group.rank(), ranks - 1, ranks - 1, pieces);
  const ReduceScatterLoad load(group, parts, output, type, op, pieces, longest);
  return go_round(group, order, load, first_step);
}

Task<void> ring_all_gather(GroupView& group, std::span<const Bytes> rooms,
                           std::uint32_t first_step) {
  const RingOrder order(group.size(), group.rank(), 0, group.size() - 1, 1);
  return go_round(group, order, AllGatherLoad{rooms}, first_step);
}

}  // namespace gtopk::collectives
