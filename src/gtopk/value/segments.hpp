// Sparse, value: a vector stored in several pieces, such as the gradients of several parameters.
// Indices refer to the whole vector. The pieces are non-owning views. This module does not know
// entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "gtopk/types.hpp"

namespace gtopk::sparse {

/// The pieces, with elements of type T; void if the type is not known yet.
template <class T>
class Segments {
 public:
  constexpr Segments() = default;
  /// A vector in one piece, which has the vector's length.
  constexpr Segments(T* only) : only_(only) {}  // NOLINT(google-explicit-constructor)
  /// A vector in these pieces; the span must outlive it. Pieces may be empty.
  constexpr explicit Segments(std::span<const Segment> pieces) : pieces_(pieces) {}
  /// The same vector, for reading.
  template <class U>
    requires std::is_same_v<const U, T>
  constexpr Segments(const Segments<U>& other)  // NOLINT(google-explicit-constructor)
      : only_(other.only()), pieces_(other.pieces()) {}
  /// The same vector, with elements of this type.
  template <class U>
    requires(std::is_void_v<U> && !std::is_void_v<T>)
  constexpr explicit Segments(const Segments<U>& other)
      : only_(static_cast<T*>(other.only())), pieces_(other.pieces()) {}

  /// The only piece; null if the vector is in several pieces.
  [[nodiscard]] constexpr T* only() const { return only_; }
  [[nodiscard]] constexpr std::span<const Segment> pieces() const { return pieces_; }

 private:
  T* only_ = nullptr;
  std::span<const Segment> pieces_;
};

/// Moves over the pieces, forwards or backwards; a move costs O(pieces in between).
template <class T>
class SegmentCursor {
 public:
  explicit SegmentCursor(Segments<T> segments)
      : pieces_(segments.pieces()), data_(segments.only()) {
    if (!pieces_.empty()) {
      enter(0, 0);
    }
  }

  /// Moves to the piece that contains element `index` of the vector.
  void go_to(std::size_t index) {
    while (index >= end_) {
      enter(piece_ + 1, end_);
    }
    while (index < begin_) {
      enter(piece_ - 1, begin_ - pieces_[piece_ - 1].size);
    }
  }

  /// The index of the first element of the piece, and the index past its last element.
  [[nodiscard]] std::size_t begin() const { return begin_; }
  [[nodiscard]] std::size_t end() const { return end_; }
  /// The address of an element of the piece.
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
