// Collectives: where the parts that go round a ring are, and how they are cut. This is pure
// arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gtopk/types.hpp"
#include "src/collectives/ring_order.hpp"

namespace gtopk::collectives {

/// One part for each place of a ring. Each part has the same number of segments, one or several;
/// each segment is cut into the same number of pieces.
class RingParts {
 public:
  /// `segments` lists the segments of part 0, of part 1, ...; `pieces` is the number of pieces per
  /// segment.
  RingParts(std::span<const Segment> segments, std::uint32_t parts, std::size_t element,
            std::uint64_t pieces)
      : segments_(segments),
        per_part_(segments.size() / parts),
        element_(element),
        pieces_(pieces) {}

  /// The number of pieces with which no piece has more bytes than `most`.
  [[nodiscard]] static std::uint64_t pieces_for(std::span<const Segment> segments,
                                                std::size_t element, std::size_t most) {
    return pieces_of(longest(segments) * element, most);
  }

  /// The number of pieces of a part.
  [[nodiscard]] std::uint64_t pieces() const { return per_part_ * pieces_; }
  /// The number of pieces of a segment.
  [[nodiscard]] std::uint64_t pieces_of_segment() const { return pieces_; }
  /// The most bytes that a piece has.
  [[nodiscard]] std::size_t piece_capacity() const {
    return (longest(segments_) + pieces_ - 1) / pieces_ * element_;
  }
  [[nodiscard]] std::span<std::byte> piece(std::uint32_t part, std::uint64_t number) const {
    const Segment& segment = segments_[part * per_part_ + number / pieces_];
    const Interval interval = interval_of(segment.size, number % pieces_, pieces_);
    return {static_cast<std::byte*>(segment.data) + interval.begin * element_,
            interval.size * element_};
  }

 private:
  [[nodiscard]] static std::uint64_t longest(std::span<const Segment> segments) {
    return std::ranges::max(segments, {}, &Segment::size).size;
  }

  std::span<const Segment> segments_;
  std::size_t per_part_;
  std::size_t element_;
  std::uint64_t pieces_;
};

}  // namespace gtopk::collectives
