// Sparse, device: a vector in several pieces of a device's memory, cut into tiles that each lie in
// one piece. It corresponds to `value/segments.hpp` on the CPU. It does not depend on kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/gtopk/device/block.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse::device {

/// The type of an element's index in lists. Devices take no vectors of 2^32 elements or more.
using Index = std::uint32_t;

/// Elements [begin, begin + size) of the vector.
template <class T>
struct Piece {
  T* tensor = nullptr;
  /// The residual of the same elements; null means zeros.
  Accumulation<T>* residual = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  /// The number of the piece's first tile.
  std::uint64_t first_tile = 0;

  /// Returns acc of the piece's element `at`.
  [[nodiscard]] GTOPK_HOST_DEVICE Accumulation<T> acc(std::uint64_t at) const {
    return accumulate_one(tensor[at], residual == nullptr ? Accumulation<T>{0} : residual[at]);
  }
};

/// A tile and the location of its elements.
template <class T>
struct Stretch {
  T* tensor = nullptr;
  Accumulation<T>* residual = nullptr;
  std::uint64_t begin = 0;
  unsigned size = 0;

  [[nodiscard]] GTOPK_HOST_DEVICE Accumulation<T> acc(std::size_t i) const {
    return accumulate_one(tensor[i], residual == nullptr ? Accumulation<T>{0} : residual[i]);
  }
  /// value() and index() make the tile a view of a source (refine.hpp).
  [[nodiscard]] GTOPK_HOST_DEVICE Accumulation<T> value(std::size_t i) const { return acc(i); }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t index(unsigned i) const { return begin + i; }
};

/// Consecutive pieces, in the device's memory; none is empty.
template <class T>
struct Pieces {
  const Piece<T>* pieces = nullptr;
  std::uint32_t count = 0;
  std::uint64_t tiles = 0;

  [[nodiscard]] GTOPK_HOST_DEVICE Stretch<T> tile(std::uint64_t number) const {
    const Piece<T>& piece = last([=](const Piece<T>& each) { return each.first_tile <= number; });
    const std::uint64_t offset = (number - piece.first_tile) * kTile;
    return {piece.tensor + offset, piece.residual == nullptr ? nullptr : piece.residual + offset,
            piece.begin + offset,
            static_cast<unsigned>(least<std::uint64_t>(kTile, piece.size - offset))};
  }

  /// The piece of one element of the vector.
  [[nodiscard]] GTOPK_HOST_DEVICE const Piece<T>& of(std::uint64_t index) const {
    return last([=](const Piece<T>& each) { return each.begin <= index; });
  }

 private:
  /// Returns the last piece for which `holds` is true; it must be true for the first piece.
  template <class Holds>
  [[nodiscard]] GTOPK_HOST_DEVICE const Piece<T>& last(Holds holds) const {
    std::uint32_t low = 0;
    std::uint32_t high = count;
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (holds(pieces[middle])) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return pieces[low];
  }
};

/// Elements [begin, begin + size) of a vector, which may lie in several pieces.
template <class T>
class Run {
 public:
  GTOPK_HOST_DEVICE Run(const Pieces<T>& acc, std::uint64_t begin, unsigned size)
      : acc_(acc), first_(acc.of(begin)), begin_(begin), size_(size) {
    whole_ = begin + size <= first_.begin + first_.size;
  }

  [[nodiscard]] GTOPK_HOST_DEVICE unsigned size() const { return size_; }
  /// Calls use(elements); elements.acc(i) may then be called for i that do not descend. Usually the
  /// elements are part of one piece, and acc(i) need not look for its end.
  template <class Use>
  GTOPK_HOST_DEVICE void with_elements(Use use) const {
    if (whole_) {
      const std::uint64_t at = begin_ - first_.begin;
      use(Stretch<T>{first_.tensor + at,
                     first_.residual == nullptr ? nullptr : first_.residual + at, begin_, size_});
    } else {
      use(Walk{&first_, begin_});
    }
  }
  [[nodiscard]] GTOPK_HOST_DEVICE Accumulation<T> acc(std::size_t i) const {
    const std::uint64_t index = begin_ + i;
    const Piece<T>& piece = whole_ ? first_ : acc_.of(index);
    return piece.acc(index - piece.begin);
  }

 private:
  /// Moves from piece to piece.
  struct Walk {
    mutable const Piece<T>* piece;
    std::uint64_t begin;

    [[nodiscard]] GTOPK_HOST_DEVICE Accumulation<T> acc(std::size_t i) const {
      while (begin + i >= piece->begin + piece->size) {
        ++piece;
      }
      return piece->acc(begin + i - piece->begin);
    }
  };

  const Pieces<T>& acc_;
  const Piece<T>& first_;
  std::uint64_t begin_;
  unsigned size_;
  bool whole_;
};

/// Fills in `begin` and `first_tile` of pieces whose sizes are known; the first piece begins at
/// element `begin`. Returns the number of tiles.
template <class T>
std::uint64_t number_tiles(Piece<T>* pieces, std::size_t count, std::uint64_t begin = 0) {
  std::uint64_t tiles = 0;
  for (std::size_t i = 0; i < count; ++i) {
    pieces[i].begin = begin;
    pieces[i].first_tile = tiles;
    begin += pieces[i].size;
    tiles += tiles_of(pieces[i].size);
  }
  return tiles;
}

}  // namespace gtopk::sparse::device
