#include "src/collectives/ring.hpp"

#include <algorithm>
#include <deque>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/reduction.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// Receives posted ahead of the one that is awaited.
constexpr std::size_t kWindow = 4;

/// The ring's order of messages: 2(P-1) steps of one chunk each, every chunk in `pieces` pieces. In
/// step s rank R sends what it got in step s-1: chunk R-1-s while reducing (s < P-1), and R-1-s
/// still while gathering.
class Schedule {
 public:
  Schedule(std::uint64_t d, std::uint32_t ranks, std::uint32_t rank, std::size_t element)
      : d_(d), ranks_(ranks), rank_(rank), element_(element) {
    // Chunks differ by at most one element; all of them are cut into as many pieces.
    const std::uint64_t longest = (d + ranks - 1) / ranks * element;
    pieces_ = std::max<std::uint64_t>(1, (longest + kPieceBytes - 1) / kPieceBytes);
  }

  struct Piece {
    std::uint64_t begin;  ///< element
    std::uint64_t size;   ///< elements
  };

  [[nodiscard]] std::uint64_t messages() const { return 2ULL * (ranks_ - 1) * pieces_; }
  /// Those in which what arrives is added; in the others it is final.
  [[nodiscard]] bool reduces(std::uint64_t message) const { return message / pieces_ < ranks_ - 1; }
  /// A message sends what arrived this many messages earlier.
  [[nodiscard]] std::uint64_t distance() const { return pieces_; }
  [[nodiscard]] Piece sent(std::uint64_t message) const {
    return piece(message, rank_ + ranks_ - 1);
  }
  [[nodiscard]] Piece received(std::uint64_t message) const {
    return piece(message, rank_ + ranks_ - 2);
  }
  [[nodiscard]] std::uint32_t step(std::uint64_t message) const {
    return static_cast<std::uint32_t>(message / pieces_);
  }
  [[nodiscard]] std::uint32_t chunk(std::uint64_t message) const {
    return static_cast<std::uint32_t>(message % pieces_);
  }
  [[nodiscard]] std::size_t longest_piece() const {
    const std::uint64_t longest = (d_ + ranks_ - 1) / ranks_;
    return ((longest + pieces_ - 1) / pieces_) * element_;
  }

 private:
  [[nodiscard]] Piece piece(std::uint64_t message, std::uint32_t first_chunk) const {
    const std::uint64_t step = message / pieces_;
    const auto chunk = static_cast<std::uint32_t>((first_chunk + 2ULL * ranks_ - step) % ranks_);
    const std::uint64_t begin = chunk_begin(d_, ranks_, chunk);
    const std::uint64_t length = chunk_begin(d_, ranks_, chunk + 1) - begin;
    const std::uint64_t number = message % pieces_;
    const std::uint64_t from = length * number / pieces_;
    const std::uint64_t to = length * (number + 1) / pieces_;
    return {begin + from, to - from};
  }

  std::uint64_t d_;
  std::uint32_t ranks_;
  std::uint32_t rank_;
  std::size_t element_;
  std::uint64_t pieces_;
};

}  // namespace

Task<void> ring_all_reduce(GroupView& group, void* data, std::uint64_t d, DataType type,
                           ReduceOp op, std::uint32_t first_step) {
  const std::uint32_t ranks = group.size();
  const std::uint32_t next = (group.rank() + 1) % ranks;
  const std::uint32_t previous = (group.rank() + ranks - 1) % ranks;
  const std::size_t element = size_of(type);
  const Schedule schedule(d, ranks, group.rank(), element);
  auto* const bytes = static_cast<std::byte*>(data);

  const auto place = [&](Schedule::Piece piece) {
    return std::span<std::byte>(bytes + piece.begin * element, piece.size * element);
  };
  // What is to be added arrives beside the tensor, in one of kWindow rooms; what is final arrives
  // in its place.
  const std::span<std::byte> rooms = group.buffer(kWindow * schedule.longest_piece());
  const auto room = [&](std::uint64_t message) {
    const Schedule::Piece piece = schedule.received(message);
    if (!schedule.reduces(message)) return place(piece);
    return rooms.subspan((message % kWindow) * schedule.longest_piece(), piece.size * element);
  };

  std::deque<Message> incoming;
  std::deque<Message> outgoing;
  std::uint64_t posted = 0;
  std::uint64_t sent = 0;
  std::uint64_t acknowledged = 0;  // sends known to be complete
  const std::uint64_t messages = schedule.messages();

  for (std::uint64_t message = 0; message < messages; ++message) {
    while (posted < messages && posted < message + kWindow) {
      // A final piece lands where the send of P-1 steps ago, of the same chunk, reads: that one
      // comes first.
      const std::uint64_t reads_until = schedule.reduces(posted) ? 0 : posted + 1 - (messages / 2);
      if (reads_until > sent) break;
      while (acknowledged < reads_until && !outgoing.empty()) {
        Message& oldest = outgoing.front();
        co_await oldest;
        outgoing.pop_front();
        ++acknowledged;
      }
      incoming.push_back(group.recv(previous, first_step + schedule.step(posted), room(posted),
                                    schedule.chunk(posted)));
      ++posted;
    }
    while (sent < messages && sent < message + schedule.distance()) {
      outgoing.push_back(group.send(next, first_step + schedule.step(sent),
                                    place(schedule.sent(sent)), schedule.chunk(sent)));
      ++sent;
    }
    Message& expected = incoming.front();
    const std::size_t received = co_await expected;
    incoming.pop_front();
    const Schedule::Piece piece = schedule.received(message);
    require_length(received, piece.size * element, group, previous);
    if (schedule.reduces(message)) {
      std::byte* const mine = place(piece).data();
      reduce(mine, room(message).data(), mine, piece.size, type, op);
    }
  }
  while (!outgoing.empty()) {
    Message& oldest = outgoing.front();
    co_await oldest;
    outgoing.pop_front();
  }
}

}  // namespace gtopk::collectives
