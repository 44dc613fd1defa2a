// Sparse, residual room: what a commit applies behind its sweep, worked out of the lists alone, for
// whoever has tensor and residual elsewhere (on a device). It knows no ranks and no device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gtopk/types.hpp"
#include "src/gtopk/value/edits.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

/// Writes what commit() and mask() (commit.hpp) would apply. Room: |own| in `cleared`, |result| in
/// `delivered`, `most_returned` in `returned`. Throws std::length_error where that is not enough.
template <class Value, class Index>
[[nodiscard]] EditCounts make_edits(Entries<Value, Index> own, Entries<Value, Index> result,
                                    std::span<const Entries<Value, Index>> dropped,
                                    PutBack put_back, std::size_t most_returned,
                                    const Edits<Value, Index>& edits) {
  const Index* const result_end = result.indices + result.size;
  const auto applies = [&](Index index) {
    return put_back == PutBack::kMerged || std::binary_search(result.indices, result_end, index);
  };
  EditCounts counts;
  counts.happened = 1;
  for (std::size_t i = 0; i < own.size; ++i) {
    if (applies(own.indices[i])) {
      edits.cleared[counts.cleared++] = own.indices[i];
    }
  }
  struct Back {
    Index index;
    std::size_t list;
    Value value;
  };
  std::vector<Back> back;
  for (std::size_t list = 0; list < dropped.size(); ++list) {
    const Entries<Value, Index>& entries = dropped[list];
    for (std::size_t i = 0; i < entries.size; ++i) {
      if (applies(entries.indices[i])) {
        back.push_back({entries.indices[i], list, entries.values[i]});
      }
    }
  }
  if (back.size() > most_returned) {
    throw std::length_error("more entries come back to the residual than were ever selected");
  }
  std::ranges::sort(back, {}, [](const Back& one) { return std::pair(one.index, one.list); });
  for (const Back& one : back) {
    edits.returned.indices[counts.returned] = one.index;
    edits.returned.values[counts.returned++] = one.value;
  }
  counts.delivered = result.size;
  std::copy_n(result.indices, result.size, edits.delivered.indices);
  std::copy_n(result.values, result.size, edits.delivered.values);
  return counts;
}

}  // namespace gtopk::sparse
