// Sparse, algorithms room: how a result that is known on every rank gets to the caller: noted
// beside the tensor, and, where no rank has sent a selection of its own, committed alike on all.
#pragma once

#include <algorithm>
#include <cstddef>

#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
void note(const Delivered& delivered, Entries<Value, Index> result) {
  if (delivered.values != nullptr) {
    std::copy_n(result.indices, result.size, delivered.indices);
    std::copy_n(result.values, result.size, static_cast<Value*>(delivered.values));
  }
}

/// `result`: indices that every rank has sent acc at, and the sums. Residuals are cleared there;
/// NaN where a sum, divided and rounded, is not finite.
template <class T, class Index>
void deliver_alike(const SparseCall& call, std::uint32_t ranks,
                   Entries<Accumulation<T>, Index> result) {
  using Value = Accumulation<T>;
  const Segments<T> tensor(call.tensor);
  const auto divisor = static_cast<Value>(call.options.op == ReduceOp::kAvg ? ranks : 1);
  const bool finite = std::all_of(result.values, result.values + result.size, [](Value value) {
    return is_finite_key<Value>(magnitude_key(value));
  });
  if (!finite || !representable<T, Value, Index>(result, divisor)) {
    fill_nan(tensor, call.d);
    return;
  }
  commit<T, Value, Index>(tensor, static_cast<Value*>(call.residual), call.d, result, result,
                          nullptr, 0, call.options.put_back, divisor);
  note(call.delivered, result);
}

/// Room for entries of the algorithms that make no lists.
template <class Value, class Index>
[[nodiscard]] EntriesOut<Value, Index> entries_room(engine::GroupView& group, std::size_t count) {
  return {reinterpret_cast<Index*>(group.buffer(count * sizeof(Index)).data()),
          reinterpret_cast<Value*>(group.buffer(count * sizeof(Value)).data())};
}

}  // namespace gtopk::sparse
