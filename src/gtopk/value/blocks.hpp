// Sparse, value: blocks of neighbouring elements, each of which keeps its own number of entries
// (the selector `block`). This is pure arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gtopk/types.hpp"

namespace gtopk::sparse {

class Blocks {
 public:
  /// Makes no blocks: entries of all elements compete.
  Blocks() = default;
  /// Cuts d elements into blocks of `length` >= 1; the last one may be shorter. Each keeps
  /// selection_size(its elements, density).
  Blocks(std::uint64_t d, double density, std::uint64_t length)
      : length_(std::min(length, d)),
        short_begin_(d == 0 ? 0 : d - d % length_),
        keeps_(selection_size(length_, density)),
        short_keeps_(selection_size(d - short_begin_, density)) {}

  /// Whether there are blocks.
  [[nodiscard]] explicit operator bool() const { return length_ != 0; }
  [[nodiscard]] std::uint64_t length() const { return length_; }
  /// The beginning of the block with this index.
  [[nodiscard]] std::uint64_t begin(std::uint64_t index) const { return index - index % length_; }
  /// The number of entries that the block that begins there keeps.
  [[nodiscard]] std::uint64_t keeps(std::uint64_t begin) const {
    return begin < short_begin_ ? keeps_ : short_keeps_;
  }
  /// The number of entries that all blocks keep.
  [[nodiscard]] std::uint64_t keep() const {
    return length_ == 0 ? 0 : short_begin_ / length_ * keeps_ + short_keeps_;
  }

 private:
  std::uint64_t length_ = 0;
  std::uint64_t short_begin_ = 0;  ///< where the elements after the last whole block begin
  std::uint64_t keeps_ = 0;
  std::uint64_t short_keeps_ = 0;
};

}  // namespace gtopk::sparse
