#include <algorithm>
#include <deque>
#include <vector>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/reduce_scatter.hpp"
#include "src/collectives/reduction.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// Receives posted ahead of the one that is awaited.
constexpr std::size_t kWindow = 4;

/// The ring's order of messages. In step s = 0 .. P-2 rank R receives the sum of part R-2-s so far,
/// adds its own values and passes it on in step s+1; the last one is its own. Each part travels in
/// pieces of one size and a shorter last one.
class Schedule {
 public:
  struct Piece {
    std::uint32_t step;
    std::uint32_t part;
    std::uint64_t begin;  ///< element of the part
    std::uint64_t size;   ///< elements
    /// Sends that read where this one lands, or come before such: they leave first.
    std::uint64_t reads_until;
  };

  Schedule(std::span<const Segment> parts, std::uint32_t rank, std::size_t element)
      : parts_(parts),
        ranks_(static_cast<std::uint32_t>(parts.size())),
        rank_(rank),
        piece_(kPieceBytes / element) {
    std::uint64_t sends = pieces(sent_first());
    std::vector<std::uint64_t> sent_before;  // sends before those of what a step received
    for (std::uint32_t step = 0; step + 1 < ranks_; ++step) {
      const std::uint32_t part = received_part(step);
      sent_before.push_back(sends);
      for (std::uint64_t number = 0; number < pieces(part); ++number) {
        received_.push_back(piece(step, part, number));
        if (step < 2) continue;
        const std::uint64_t before = pieces(received_part(step - 2));
        received_.back().reads_until = sent_before[step - 2] + std::min(number + 1, before);
      }
      sends += pieces(part);
    }
  }

  [[nodiscard]] const std::vector<Piece>& received() const { return received_; }
  /// The part that a rank sends as it is, and its pieces.
  [[nodiscard]] std::uint32_t sent_first() const { return (rank_ + ranks_ - 1) % ranks_; }
  [[nodiscard]] std::uint64_t pieces(std::uint32_t part) const {
    return (parts_[part].size + piece_ - 1) / piece_;
  }
  [[nodiscard]] Piece piece(std::uint32_t step, std::uint32_t part, std::uint64_t number) const {
    const std::uint64_t begin = number * piece_;
    return {step, part, begin, std::min(piece_, parts_[part].size - begin), 0};
  }
  [[nodiscard]] std::uint32_t chunk(const Piece& piece) const {
    return static_cast<std::uint32_t>(piece.begin / piece_);
  }
  /// Elements.
  [[nodiscard]] std::uint64_t longest_part() const {
    return std::ranges::max(parts_, {}, &Segment::size).size;
  }

 private:
  [[nodiscard]] std::uint32_t received_part(std::uint32_t step) const {
    return (rank_ + 2 * ranks_ - 2 - step) % ranks_;
  }

  std::span<const Segment> parts_;
  std::uint32_t ranks_;
  std::uint32_t rank_;
  std::uint64_t piece_;  ///< elements
  std::vector<Piece> received_;
};

}  // namespace

Task<void> ring_reduce_scatter(GroupView& group, std::span<const Segment> parts, void* output,
                               DataType type, ReduceOp op, std::uint32_t first_step) {
  const std::uint32_t ranks = group.size();
  const std::uint32_t next = (group.rank() + 1) % ranks;
  const std::uint32_t previous = (group.rank() + ranks - 1) % ranks;
  const std::size_t element = size_of(type);
  const Schedule schedule(parts, group.rank(), element);

  const auto mine = [&](const Schedule::Piece& piece) {
    return std::span<std::byte>(
        static_cast<std::byte*>(parts[piece.part].data) + piece.begin * element,
        piece.size * element);
  };
  // A sum that is passed on lies here until it has left: those of two steps by turns.
  const std::size_t room = schedule.longest_part() * element;
  const std::span<std::byte> rooms = group.buffer(std::min(ranks - 1, 2U) * room);
  const auto sum = [&](const Schedule::Piece& piece) {
    return rooms.subspan((piece.step % 2) * room + piece.begin * element, piece.size * element);
  };

  std::deque<Message> incoming;
  std::deque<Message> outgoing;
  std::uint64_t posted = 0;
  std::uint64_t sent = 0;
  std::uint64_t acknowledged = 0;  // sends known to be complete
  for (; sent < schedule.pieces(schedule.sent_first()); ++sent) {
    const Schedule::Piece piece = schedule.piece(0, schedule.sent_first(), sent);
    outgoing.push_back(group.send(next, first_step, mine(piece), schedule.chunk(piece)));
  }
  for (std::uint64_t number = 0; number < schedule.received().size(); ++number) {
    while (posted < schedule.received().size() && posted < number + kWindow) {
      const Schedule::Piece& piece = schedule.received()[posted];
      if (piece.reads_until > sent) break;
      while (acknowledged < piece.reads_until) {
        Message& oldest = outgoing.front();
        co_await oldest;
        outgoing.pop_front();
        ++acknowledged;
      }
      incoming.push_back(
          group.recv(previous, first_step + piece.step, sum(piece), schedule.chunk(piece)));
      ++posted;
    }
    const Schedule::Piece& piece = schedule.received()[number];
    Message& expected = incoming.front();
    const std::size_t received = co_await expected;
    incoming.pop_front();
    require_length(received, piece.size * element, group, previous);
    const bool last = piece.step + 2 == ranks;
    std::byte* const into =
        last ? static_cast<std::byte*>(output) + piece.begin * element : sum(piece).data();
    reduce(into, sum(piece).data(), mine(piece).data(), piece.size, type, op);
    if (last) continue;
    outgoing.push_back(
        group.send(next, first_step + piece.step + 1, sum(piece), schedule.chunk(piece)));
    ++sent;
  }
  while (!outgoing.empty()) {
    Message& oldest = outgoing.front();
    co_await oldest;
    outgoing.pop_front();
  }
}

}  // namespace gtopk::collectives
