// Sparse, algorithms: finds the heavy elements of a count-sketch, whose estimates come first in the
// selection order. Estimates are computed one stretch at a time; all d of them are never stored.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/select/candidates.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

/// Finds the first `most` >= 1 of d elements, ascending by index, with their estimates, or fewer if
/// fewer estimates are nonzero. Cells must be finite. Returns the number found.
template <class Value, class Index>
[[nodiscard]] std::size_t unsketch(const CountSketch& sketch, const Value* cells, std::size_t d,
                                   std::size_t most, EntriesOut<Value, Index> heaviest,
                                   SelectScratch& scratch) {
  std::array<Value, CountSketch::kStretch> estimates;
  Candidates<Value, Index> candidates({}, nullptr, d, most, scratch);
  candidates.start(1);
  for (std::size_t begin = 0; begin < d; begin += estimates.size()) {
    const std::size_t length = std::min(estimates.size(), d - begin);
    sketch.estimate(cells, begin, std::span(estimates.data(), length));
    static_cast<void>(candidates.take(estimates.data(), nullptr, begin, length));
  }
  if (candidates.size() > most) {
    static_cast<void>(candidates.keep_first(most));
  }
  return candidates.write(heaviest);
}

}  // namespace gtopk::sparse
