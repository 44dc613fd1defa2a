// Sparse, wire: rounds a list in which the values of a block share something. Entries that become
// zero leave the list, and the remaining entries form the blocks of a message.
#pragma once

#include <algorithm>
#include <cstddef>

#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/wire/rounding.hpp"

namespace gtopk::sparse {

/// Grid<Value> holds what a block's values share. take(value) adds a value to the block, and
/// returns whether rounded() has changed for the values before it. A block has as many entries as
/// are needed to leave `block` entries after rounding; the last one may leave fewer.
template <template <class> class Grid, class Value, class Index>
void round_by_blocks(EntriesOut<Value, Index> list, std::size_t count, std::size_t block,
                     Rounding<Value, Index>& rounding) {
  for (std::size_t begin = 0; begin < count;) {
    std::size_t end = begin;
    std::size_t left = 0;
    Grid<Value> grid;
    for (; end < count && left < block; ++end) {
      if (grid.take(list.values[end])) {
        left = static_cast<std::size_t>(
            std::count_if(list.values + begin, list.values + end,
                          [&grid](Value value) { return grid.rounded(value) != 0; }));
      }
      left += grid.rounded(list.values[end]) != 0 ? 1 : 0;
    }
    for (; begin < end; ++begin) {
      rounding.take(begin, grid.rounded(list.values[begin]));
    }
  }
}

}  // namespace gtopk::sparse
