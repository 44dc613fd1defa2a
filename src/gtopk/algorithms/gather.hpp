// Sparse, algorithms room: one rank's acc at indices that all ranks know, so that values can be
// summed without indices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// Calls visit(begin, acc, count, finite) for stretches of acc, in order, none longer than
/// `Stretch`.
template <class T, std::size_t Stretch, class Visit>
void for_each_stretch_of_acc(const SparseCall& call, Visit visit) {
  using Value = Accumulation<T>;
  const auto* const residual = static_cast<const Value*>(call.residual);
  std::array<Value, Stretch> acc;
  SegmentCursor<T> cursor{Segments<T>(call.tensor)};
  for (std::size_t begin = 0, end = 0; begin < call.d; begin = end) {
    cursor.go_to(begin);
    end = std::min({begin + Stretch, cursor.end(), static_cast<std::size_t>(call.d)});
    const bool finite = accumulate<T, Value>(Segments<const T>(cursor.at(begin)),
                                             residual == nullptr ? nullptr : residual + begin,
                                             acc.data(), end - begin);
    visit(begin, acc.data(), end - begin, finite);
  }
}

/// acc at `count` ascending indices; all NaN when any acc is not finite, asked for or not.
template <class T, class Index>
void gather(const SparseCall& call, const Index* indices, std::size_t count,
            Accumulation<T>* values) {
  using Value = Accumulation<T>;
  std::size_t taken = 0;
  bool spoiled = false;
  for_each_stretch_of_acc<T, 4096>(
      call, [&](std::size_t begin, const Value* acc, std::size_t length, bool finite) {
        spoiled |= !finite;
        for (; taken < count && indices[taken] < begin + length; ++taken) {
          values[taken] = acc[indices[taken] - begin];
        }
      });
  if (spoiled) {
    std::fill_n(values, count, std::numeric_limits<Value>::quiet_NaN());
  }
}

}  // namespace gtopk::sparse
