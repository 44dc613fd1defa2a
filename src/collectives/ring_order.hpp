// Collectives: which piece of which part travels when round a ring of P ranks. This is pure
// arithmetic.
//
// In step s = 0, 1, ... rank R sends part (R + first - s) mod P to rank R+1, and receives part (R +
// first - 1 - s) mod P, which it passes on in the next step. All parts are cut into the same number
// of pieces, so that message m is piece m mod pieces of step m / pieces, whatever the parts' sizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gtopk::collectives {

struct RingPiece {
  std::uint32_t step;
  std::uint32_t part;
  std::uint32_t number;
};

class RingOrder {
 public:
  /// `first` is the part that rank 0 sends first.
  RingOrder(std::uint32_t ranks, std::uint32_t rank, std::uint32_t first, std::uint32_t steps,
            std::uint64_t pieces)
      : ranks_(ranks), rank_(rank), first_(first), steps_(steps), pieces_(pieces) {}

  [[nodiscard]] std::uint64_t messages() const { return steps_ * pieces_; }
  /// The number of pieces per part. The piece sent as message m arrived as message m - pieces().
  [[nodiscard]] std::uint64_t pieces() const { return pieces_; }
  [[nodiscard]] RingPiece sent(std::uint64_t message) const { return piece(message, ranks_); }
  [[nodiscard]] RingPiece received(std::uint64_t message) const {
    return piece(message, ranks_ - 1);
  }

 private:
  [[nodiscard]] RingPiece piece(std::uint64_t message, std::uint32_t shift) const {
    const auto step = static_cast<std::uint32_t>(message / pieces_);
    const std::uint64_t part = std::uint64_t{rank_} + first_ + shift + ranks_ - step % ranks_;
    return {step, static_cast<std::uint32_t>(part % ranks_),
            static_cast<std::uint32_t>(message % pieces_)};
  }

  std::uint32_t ranks_;
  std::uint32_t rank_;
  std::uint32_t first_;
  std::uint32_t steps_;
  std::uint64_t pieces_;
};

/// The number of pieces, at least 1, that keeps pieces of parts of at most `longest` to at most
/// `most`.
[[nodiscard]] constexpr std::uint64_t pieces_of(std::uint64_t longest, std::uint64_t most) {
  return std::max<std::uint64_t>(1, (longest + most - 1) / most);
}

/// A piece of a part of `size` elements.
struct Interval {
  std::uint64_t begin;
  std::uint64_t size;
};
[[nodiscard]] constexpr Interval interval_of(std::uint64_t size, std::uint64_t number,
                                             std::uint64_t pieces) {
  const std::uint64_t begin = size * number / pieces;
  return {begin, size * (number + 1) / pieces - begin};
}

}  // namespace gtopk::collectives
