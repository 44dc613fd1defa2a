// Sparse, algorithms: the count-sketch of a vector (Charikar, Chen and Farach-Colton, ICALP 2002):
// r rows of c cells. In each row an element is added, with a sign, to one cell, and each row gives
// an estimate of the element; the median of the estimates is used. It is linear: sketches of
// several vectors add up to the sketch of their sum. The sketch does not know ranks or tensors.
//
// Elements are added as fixed-point numbers, so their order does not matter. Hashes are recomputed
// at every index and never stored: at consecutive indices a polynomial takes one addition per
// degree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/gtopk/value/sketch_hashes.hpp"

namespace gtopk::sparse {

class CountSketch {
 public:
  static constexpr std::size_t kRows = SketchHashes::kRows;
  /// The most elements per call.
  static constexpr std::size_t kStretch = 1024;

  /// Makes a sketch with `columns` >= 1 columns per row. Equal seeds and columns make equal hashes
  /// on every machine.
  CountSketch(std::uint64_t seed, std::uint64_t columns)
      : hashes_(SketchHashes::drawn_from(seed, columns)) {}

  /// The number of cells of all rows, which are stored one after the other.
  [[nodiscard]] std::uint64_t cells() const { return hashes_.cells(); }
  /// The number of cells of one row.
  [[nodiscard]] std::uint64_t columns() const { return hashes_.columns; }

  /// Adds values[0], values[1], ..., which are elements begin, begin + 1, ... of a vector with the
  /// fixed point `point`, to the cells of one row, which hold fixed-point numbers. Work proceeds
  /// row by row because all rows together do not fit in a cache.
  template <class Value>
  void add(std::size_t row, std::uint64_t begin, std::span<const Value> values, FixedPoint point,
           std::uint64_t* cells) const;

  /// The estimates of elements begin, begin + 1, ...: the medians of the rows' estimates.
  template <class Value>
  void estimate(const Value* cells, std::uint64_t begin, std::span<Value> estimates) const;

 private:
  SketchHashes hashes_;
};

}  // namespace gtopk::sparse
