// Sparse, algorithms: the types of a call's tensor and of its lists.
#pragma once

#include <cstdint>

#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {

/// Calls visit<T, Index>() with a tensor's type and the type of its lists' indices. Awaiting
/// happens outside of it, because coroutines for all eight pairs would make up most of the library.
template <class Visit>
void visit_types(DataType tensor, EntryType entry, const Visit& visit) {
  visit_floating(tensor, [&]<class T>() {
    if (entry.index_bytes == 8) {
      visit.template operator()<T, std::uint64_t>();
    } else {
      visit.template operator()<T, std::uint32_t>();
    }
  });
}
template <class Visit>
void visit_types(const SparseCall& call, const Visit& visit) {
  visit_types(call.dtype, call.entry_type(), visit);
}

}  // namespace gtopk::sparse
