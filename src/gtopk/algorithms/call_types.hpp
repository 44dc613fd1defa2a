// Sparse, algorithms room: the types of a call's tensor and lists, and whether a result fits them.
#pragma once

#include <cstdint>

#include "src/gtopk/algorithms/call_plan.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {

/// Calls visit<T, Index>() with the types of the call's tensor and lists.
template <class Visit>
void visit_types(const SparseCall& call, const Plan& plan, const Visit& visit) {
  visit_floating(call.dtype, [&]<class T>() {
    if (plan.lists.type.index_bytes == 8) {
      visit.template operator()<T, std::uint64_t>();
    } else {
      visit.template operator()<T, std::uint32_t>();
    }
  });
}

/// Whether every value of the result, divided and rounded, is finite.
[[nodiscard]] inline bool finite(const SparseCall& call, const Plan& plan, std::uint32_t ranks,
                                 const List& result) {
  if (!result.finite) {
    return false;
  }
  bool fits = false;
  visit_types(call, plan, [&]<class T, class Index>() {
    using Value = Accumulation<T>;
    fits = representable<T, Value, Index>(result.entries<Value, Index>(),
                                          divisor_of<Value>(call.options, ranks));
  });
  return fits;
}

}  // namespace gtopk::sparse
