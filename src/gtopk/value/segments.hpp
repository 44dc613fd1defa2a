// Sparse, value room: a vector that lies in several pieces, one after the other, as the gradients
// of several parameters do. Indices are those of the vector as a whole. Views only: who made the
// memory owns it. It knows no entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "gtopk/types.hpp"

namespace gtopk::sparse {

/// The pieces, whose elements are T; void where the type is not known yet.
template <class T>
class Segments {
 public:
  constexpr Segments() = default;
  /// In one piece, as long as the vector is: all that a plain pointer can say.
  constexpr Segments(T* only) : only_(only) {}  // NOLINT(google-explicit-constructor)
  /// In these, which stay where they are while the vector is used. Pieces may be empty.
  constexpr explicit Segments(std::span<const Segment> pieces) : pieces_(pieces) {}
  /// The same for reading.
  template <class U>
    requires std::is_same_v<const U, T>
  constexpr Segments(const Segments<U>& other)  // NOLINT(google-explicit-constructor)
      : only_(other.only()), pieces_(other.pieces()) {}
  /// The same, of this type.
  template <class U>
    requires(std::is_void_v<U> && !std::is_void_v<T>)
  constexpr explicit Segments(const Segments<U>& other)
      : only_(static_cast<T*>(other.only())), pieces_(other.pieces()) {}

  /// Null where the vector lies in several pieces.
  [[nodiscard]] constexpr T* only() const { return only_; }
  [[nodiscard]] constexpr std::span<const Segment> pieces() const { return pieces_; }

 private:
  T* only_ = nullptr;
  std::span<const Segment> pieces_;
};

/// Walks over the pieces, forwards or backwards: a step costs the pieces that lie between.
template <class T>
class SegmentCursor {
 public:
  explicit SegmentCursor(Segments<T> segments)
      : pieces_(segments.pieces()), data_(segments.only()) {
    if (!pieces_.empty()) {
      enter(0, 0);
    }
  }

  /// Goes to the piece that element `index` of the vector lies in.
  void go_to(std::size_t index) {
    while (index >= end_) {
      enter(piece_ + 1, end_);
    }
    while (index < begin_) {
      enter(piece_ - 1, begin_ - pieces_[piece_ - 1].size);
    }
  }

  /// The first element of the piece, and the one behind its last.
  [[nodiscard]] std::size_t begin() const { return begin_; }
  [[nodiscard]] std::size_t end() const { return end_; }
  /// Where an element of the piece lies.
  [[nodiscard]] T* at(std::size_t index) const { return data_ + (index - begin_); }

 private:
  void enter(std::size_t piece, std::size_t begin) {
    piece_ = piece;
    data_ = static_cast<T*>(pieces_[piece].data);
    begin_ = begin;
    end_ = begin + static_cast<std::size_t>(pieces_[piece].size);
  }

  std::span<const Segment> pieces_;
  T* data_;
  std::size_t piece_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = std::numeric_limits<std::size_t>::max();
};

/// Calls visit(T* data, begin, end) for each part of [0, d) that lies in one piece, in order.
template <class T, class Visit>
void for_each_segment(Segments<T> segments, std::size_t d, Visit visit) {
  SegmentCursor<T> cursor(segments);
  for (std::size_t begin = 0; begin < d;) {
    cursor.go_to(begin);
    const std::size_t end = cursor.end() < d ? cursor.end() : d;
    visit(cursor.at(begin), begin, end);
    begin = end;
  }
}

}  // namespace gtopk::sparse
