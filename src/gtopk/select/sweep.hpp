// Sparse, select: the reading sweep over a stretch of a tensor. Its SIMD form is chosen at run
// time. It does not know k or the tensor as a whole.
#pragma once

#include <cstddef>

#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// The number of elements per call, chosen so that the output of a call fits in the first-level
/// caches at any density.
inline constexpr std::size_t kSweepStretch = 4096;

/// The extra capacity of the outputs beyond the stretch, because whole vectors are stored.
inline constexpr std::size_t kSweepSlack = 64;

/// The elements of a stretch that are large enough. Offsets are as wide as the values because SIMD
/// compaction requires it.
template <class Value>
struct StretchCandidates {
  Key<Value> offsets[kSweepStretch + kSweepSlack];
  Value values[kSweepStretch + kSweepSlack];
};

/// Finds each i in [0, count) with magnitude_key(gradient[i] + residual[i]) >= threshold (at least
/// 1, so zeros are never found) and returns how many there are; `residual` may be null. NaN and Inf
/// are found by any threshold.
template <class T>
[[nodiscard]] std::size_t sweep_stretch(const T* gradient, const Accumulation<T>* residual,
                                        std::size_t count, Key<Accumulation<T>> threshold,
                                        StretchCandidates<Accumulation<T>>& found);

}  // namespace gtopk::sparse
