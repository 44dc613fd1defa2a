// Sparse, residual: the edits that a commit applies after its sweep, computed only from the lists,
// for callers whose tensor and residual are elsewhere (on a device). It does not know ranks or
// devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <vector>

#include "src/gtopk/residual/step_lists.hpp"
#include "src/gtopk/value/edits.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

/// Whether ascending indices contain the queried ones, which ascend too.
template <class Index>
class AscendingLookup {
 public:
  AscendingLookup(const Index* indices, std::size_t size) : next_(indices), end_(indices + size) {}

  [[nodiscard]] bool contains(Index index) {
    while (next_ != end_ && *next_ < index) {
      ++next_;
    }
    return next_ != end_ && *next_ == index;
  }

 private:
  const Index* next_;
  const Index* end_;
};

/// Writes what commit() and mask() (commit.hpp) would apply. `cleared` needs capacity |own|,
/// `delivered` |result|, and `returned` `most_returned`. Throws std::length_error if that is not
/// enough. Each list is read once, from front to back.
template <class Value, class Index>
[[nodiscard]] EditCounts make_edits(const StepLists<Value, Index>& lists, std::size_t most_returned,
                                    const Edits<Value, Index>& edits) {
  const auto& [own, result, dropped, put_back] = lists;
  const bool all = put_back == PutBack::kMerged;
  EditCounts counts;
  counts.happened = 1;
  AscendingLookup<Index> in_result(result.indices, result.size);
  for (std::size_t i = 0; i < own.size; ++i) {
    if (all || in_result.contains(own.indices[i])) {
      edits.cleared[counts.cleared++] = own.indices[i];
    }
  }
  // These are the remainders of the lists that are not exhausted, in the order of the lists.
  std::vector<Entries<Value, Index>> left;
  left.reserve(dropped.size());
  std::ranges::copy_if(dropped, std::back_inserter(left),
                       [](const auto& list) { return list.size != 0; });
  in_result = {result.indices, result.size};
  while (!left.empty()) {
    const Index index =
        std::ranges::min(left, {}, [](const auto& list) { return list.indices[0]; }).indices[0];
    const bool applies = all || in_result.contains(index);
    bool ended = false;
    for (Entries<Value, Index>& list : left) {
      if (list.indices[0] != index) {
        continue;
      }
      if (applies) {
        if (counts.returned == most_returned) {
          throw std::length_error("more entries come back to the residual than were ever selected");
        }
        edits.returned.indices[counts.returned] = index;
        edits.returned.values[counts.returned++] = list.values[0];
      }
      list = {list.indices + 1, list.values + 1, list.size - 1};
      ended |= list.size == 0;
    }
    if (ended) {
      std::erase_if(left, [](const auto& list) { return list.size == 0; });
    }
  }
  counts.delivered = result.size;
  std::copy_n(result.indices, result.size, edits.delivered.indices);
  std::copy_n(result.values, result.size, edits.delivered.values);
  return counts;
}

}  // namespace gtopk::sparse
