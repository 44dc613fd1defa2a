// Tests, device: cases of a count-sketch, its cells on the CPU, and what is heavy in
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/value/sketch_hashes.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"

namespace gtopk::sparse::testing {

template <class T>
struct SketchCase {
  using Value = Accumulation<T>;

  std::vector<T> tensor;
  std::vector<Value> residual;  // empty: none
  std::uint64_t columns = 1;

  static SketchCase random(std::uint64_t seed, std::mt19937_64& random) {
    SketchCase one;
    const std::size_t d = 1 + random() % 9'000;
    one.tensor = random_values<T>(random_kind(random), d, random);
    if (seed % 3 != 0) {
      one.residual = random_values<Value>(random_kind(random), d, random);
    }
    if (seed % 5 == 0) {
      one.tensor[random() % d] = narrow<T>(std::numeric_limits<Value>::infinity());
    }
    one.columns = 1 + random() % 50;
    return one;
  }

  [[nodiscard]] std::size_t d() const { return tensor.size(); }
};

/// All NaN if acc is not finite.
template <class T>
[[nodiscard]] std::vector<Accumulation<T>> cells_on_the_cpu(const SketchCase<T>& one,
                                                            std::uint64_t seed) {
  using Value = Accumulation<T>;
  std::vector<Value> acc(one.d());
  (void)accumulate<T, Value>(one.tensor.data(),
                             one.residual.empty() ? nullptr : one.residual.data(), acc.data(),
                             acc.size());
  const CountSketch sketch(seed, one.columns);
  std::vector<Value> cells(sketch.cells(), std::numeric_limits<Value>::quiet_NaN());
  Key<Value> largest = 0;
  for (const Value value : acc) {
    largest = std::max(largest, magnitude_key(value));
  }
  if (!is_finite_key<Value>(largest)) {
    return cells;
  }
  const auto point = FixedPoint::of<Value>(largest, acc.size());
  std::vector<std::uint64_t> numbers(sketch.cells());
  for (std::size_t row = 0; row < CountSketch::kRows; ++row) {
    for (std::size_t begin = 0; begin < acc.size(); begin += CountSketch::kStretch) {
      const std::size_t length = std::min(CountSketch::kStretch, acc.size() - begin);
      sketch.add(row, begin, std::span<const Value>(&acc[begin], length), point,
                 numbers.data() + row * one.columns);
    }
  }
  std::ranges::transform(numbers, cells.begin(),
                         [&](std::uint64_t number) { return point.template value<Value>(number); });
  return cells;
}

/// Whether the cells are the expected ones: bit for bit, or any NaN where those are.
template <class Value>
[[nodiscard]] bool same_cells(const std::vector<Value>& cells, const std::vector<Value>& expected) {
  if (std::isnan(expected.front())) {
    return std::ranges::all_of(cells, [](Value cell) { return std::isnan(cell); });
  }
  return same_bits(cells, expected);
}

/// Summed cells, in which `most` elements are looked for.
template <class Value>
struct HeavyCase {
  std::size_t d = 1;
  std::uint64_t columns = 1;
  std::size_t most = 1;
  std::vector<Value> cells;

  static HeavyCase random(std::mt19937_64& random) {
    HeavyCase one;
    one.d = 1 + random() % 9'000;
    one.columns = 1 + random() % 50;
    one.most = 1 + random() % 300;
    one.cells =
        random_values<Value>(random_kind(random), SketchHashes::kRows * one.columns, random);
    std::ranges::replace_if(one.cells, [](Value cell) { return !std::isfinite(cell); }, Value{0});
    return one;
  }
};

template <class Index, class Value>
[[nodiscard]] std::vector<Index> heaviest_on_the_cpu(const HeavyCase<Value>& one,
                                                     std::uint64_t seed) {
  std::vector<Index> indices(one.most);
  std::vector<Value> estimates(one.most);
  SelectScratch scratch;
  indices.resize(unsketch<Value, Index>(CountSketch(seed, one.columns), one.cells.data(), one.d,
                                        one.most, {indices.data(), estimates.data()}, scratch));
  return indices;
}

}  // namespace gtopk::sparse::testing
