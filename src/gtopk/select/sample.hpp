// Sparse, select: a guess of the threshold from a sample. A bad guess costs time but never changes
// the result. It does not know entries.
#pragma once

#include <cstddef>

#include "src/gtopk/value/growing_buffer.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// Returns a key that somewhat more than k elements of acc probably reach; it is at least 1 and at
/// most the key of Inf. It is deterministic: it depends only on the data, not on its cut into
/// pieces. Requires `k` >= 1.
template <class T>
[[nodiscard]] Key<Accumulation<T>> sampled_threshold(Segments<const T> gradient,
                                                     const Accumulation<T>* residual, std::size_t d,
                                                     std::size_t k, GrowingBuffer& keys);

}  // namespace gtopk::sparse
