// Sparse, merge: the sum of two sorted lists, branch-free. Indices of two ranks interleave at
// random, and a mispredicted branch per entry would cost more than all the arithmetic. It selects
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/gtopk/value/chosen.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {
namespace detail {

/// Returns how many of a's entries are among the first `diagonal` entries of both lists (merge
/// path: Odeh et al., 2012).
template <class Value, class Index>
[[nodiscard]] std::size_t split_diagonal(Entries<Value, Index> a, Entries<Value, Index> b,
                                         std::size_t diagonal) {
  std::size_t low = diagonal > b.size ? diagonal - b.size : 0;
  std::size_t high = std::min(diagonal, a.size);
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (a.indices[middle] < b.indices[diagonal - middle - 1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The state of adding one stretch of both lists.
struct Zip {
  std::size_t i;  // next entry of a
  std::size_t j;  // next entry of b
  std::size_t size;
  std::size_t end_a;
  std::size_t end_b;

  /// The number of steps that can be taken without checking for an end.
  [[nodiscard]] std::size_t safe_steps() const { return std::min(end_a - i, end_b - j); }
};

template <class Value, class Index>
void step(Zip& zip, Entries<Value, Index> a, Entries<Value, Index> b,
          EntriesOut<Value, Index> sum) {
  const Index index_a = a.indices[zip.i];
  const Index index_b = b.indices[zip.j];
  // This uses the borrow instead of a comparison, because g++ turns comparisons into the branches
  // that this code avoids, even behind masks and empty asm. Indices are below 2^63.
  const auto wide_a = static_cast<std::uint64_t>(index_a);
  const auto wide_b = static_cast<std::uint64_t>(index_b);
  const std::uint64_t has_a = 1 - ((wide_b - wide_a) >> 63U);
  const std::uint64_t has_b = 1 - ((wide_a - wide_b) >> 63U);
  sum.indices[zip.size] =
      index_b ^ ((index_a ^ index_b) & static_cast<Index>(std::uint64_t{0} - has_a));
  sum.values[zip.size] =
      chosen(has_a, a.values[zip.i], Value{0}) + chosen(has_b, b.values[zip.j], Value{0});
  zip.i += has_a;
  zip.j += has_b;
  ++zip.size;
}

/// Adds the rest. Like a step, it adds a zero if an entry has no partner, so that -0 becomes +0
/// everywhere.
template <class Value, class Index>
void finish(Zip& zip, Entries<Value, Index> a, Entries<Value, Index> b,
            EntriesOut<Value, Index> sum) {
  while (zip.safe_steps() > 0) {
    step(zip, a, b, sum);
  }
  for (; zip.i < zip.end_a; ++zip.i, ++zip.size) {
    sum.indices[zip.size] = a.indices[zip.i];
    sum.values[zip.size] = a.values[zip.i] + 0;
  }
  for (; zip.j < zip.end_b; ++zip.j, ++zip.size) {
    sum.indices[zip.size] = b.indices[zip.j];
    sum.values[zip.size] = b.values[zip.j] + 0;
  }
}

}  // namespace detail

/// Writes the union of a and b, with values of equal indices added, and returns its size. `sum`
/// needs capacity |a| + |b|.
///
/// Two stretches are processed alternately, because one alone would wait for its own loads: 8
/// cycles from an index through the comparison to the next index.
template <class Value, class Index>
[[nodiscard]] std::size_t add_lists(Entries<Value, Index> a, Entries<Value, Index> b,
                                    EntriesOut<Value, Index> sum) {
  const std::size_t diagonal = (a.size + b.size) / 2;
  const std::size_t middle_a = detail::split_diagonal(a, b, diagonal);
  std::size_t middle_b = diagonal - middle_a;
  // The two entries of one index belong to the same stretch.
  if (middle_a < a.size && middle_b > 0 && a.indices[middle_a] == b.indices[middle_b - 1]) {
    --middle_b;
  }
  detail::Zip front{0, 0, 0, middle_a, middle_b};
  detail::Zip back{middle_a, middle_b, middle_a + middle_b, a.size, b.size};
  const std::size_t back_begin = back.size;
  while (const std::size_t steps = std::min(front.safe_steps(), back.safe_steps())) {
    // Copies stay in registers. Through a reference, any store to `sum` might change them.
    detail::Zip front_here = front;
    detail::Zip back_here = back;
    for (std::size_t n = 0; n < steps; ++n) {
      detail::step(front_here, a, b, sum);
      detail::step(back_here, a, b, sum);
    }
    front = front_here;
    back = back_here;
  }
  detail::finish(front, a, b, sum);
  detail::finish(back, a, b, sum);
  if (front.size != back_begin) {
    std::move(sum.indices + back_begin, sum.indices + back.size, sum.indices + front.size);
    std::move(sum.values + back_begin, sum.values + back.size, sum.values + front.size);
  }
  return front.size + (back.size - back_begin);
}

}  // namespace gtopk::sparse
