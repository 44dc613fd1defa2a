// Sparse, algorithms room: the count-sketch of a vector (Charikar, Chen and Farach-Colton, ICALP
// 2002): r rows of c cells; in each row an element is added, with a sign, to one cell, and each row
// gives an estimate of it, of which the median counts. Linear: sketches of several vectors add up
// to the sketch of their sum. It knows no ranks and no tensors.
//
// Hashes are polynomials over the integers modulo 2^61 - 1, as many coefficients as indices are to
// be independent (Wegman and Carter, 1981): two for the cell, four for the sign. They are computed
// at every index anew and never stored: at consecutive indices a polynomial takes one addition per
// degree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gtopk::sparse {

class CountSketch {
 public:
  static constexpr std::size_t kRows = 5;
  /// The most elements per call.
  static constexpr std::size_t kStretch = 1024;

  /// columns >= 1, of each row. Equal seeds and columns make equal hashes, on every machine.
  CountSketch(std::uint64_t seed, std::uint64_t columns);

  /// Of all rows, which lie one after the other.
  [[nodiscard]] std::uint64_t cells() const { return kRows * columns_; }

  /// Adds values[0], values[1], ..., elements begin, begin + 1, ... of a vector, in this order.
  template <class Value>
  void add(std::uint64_t begin, std::span<const Value> values, Value* cells) const;

  /// The estimates of elements begin, begin + 1, ...: the median of the rows'.
  template <class Value>
  void estimate(const Value* cells, std::uint64_t begin, std::span<Value> estimates) const;

 private:
  /// Coefficients, that of x^0 first.
  template <std::size_t Degree>
  using Polynomial = std::array<std::uint64_t, Degree + 1>;

  struct Row {
    Polynomial<1> cell;
    Polynomial<3> sign;
  };

  std::uint64_t columns_;
  std::array<Row, kRows> rows_;
};

}  // namespace gtopk::sparse
