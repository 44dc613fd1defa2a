// Sparse, residual: the one sweep that writes tensor and residual, after the exchange has succeeded
// on every rank. Nothing is written before it, so a step that fails has no effect. It does not know
// ranks or the exchange.
#pragma once

#include <cstddef>

#include "src/gtopk/residual/step_lists.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/segments.hpp"

namespace gtopk::sparse {

/// Whether every value / divisor rounds to a finite T. This is checked before commit, because an
/// overflow in rounding must leave the residual unchanged.
template <class T, class Value, class Index>
[[nodiscard]] bool representable(Entries<Value, Index> result, Value divisor);

/// Commits a step, in this order:
/// 1. residual <- gradient + residual (bitwise the acc that was selected from), tensor <- 0;
/// 2. PutBack::kOwn: residual[i] <- 0 for i in both `own` and `result`; then, list after list, each
///    dropped entry whose index is in `result` is added to the residual.
///    PutBack::kMerged: residual[i] <- 0 for i in `own`; then every dropped entry is added;
/// 3. tensor[i] <- T(value / divisor), rounded once, for (i, value) in `result`.
///
/// `tensor` holds the gradient on entry; its cut into pieces does not affect the result. `residual`
/// may be null; then only step 3 is done, on zeros.
/// It does not allocate.
template <class T, class Value, class Index>
void commit(Segments<T> tensor, Value* residual, std::size_t d,
            const StepLists<Value, Index>& lists, Value divisor);

/// Sets momentum[i] <- 0 wherever commit() clears the residual because this rank has sent the
/// entry.
template <class Value, class Index>
void mask(Value* momentum, const StepLists<Value, Index>& lists);

/// Writes the tensor of a step that did not happen.
template <class T>
void fill_nan(Segments<T> tensor, std::size_t d);

/// Returns, for `dense`, whether every sum / divisor rounds to a finite T.
template <class T, class Value>
[[nodiscard]] bool all_representable(const Value* sums, std::size_t d, Value divisor);

/// Commits for `dense`, whose result is all d sums: tensor[i] <- T(sum / divisor), rounded once,
/// and residual <- 0. `residual` may be null.
template <class T, class Value>
void commit_whole(Segments<T> tensor, Value* residual, const Value* sums, std::size_t d,
                  Value divisor);

/// Computes acc <- gradient + residual, for `dense`. `residual` may be null (zeros), and may be
/// `acc` itself. Returns whether every acc is finite.
template <class T, class Value>
[[nodiscard]] bool accumulate(Segments<const T> gradient, const Value* residual, Value* acc,
                              std::size_t d);

}  // namespace gtopk::sparse
