// Sparse, select: the sums that determine mean and deviation of acc, in one fixed order. It does
// not know thresholds.
#pragma once

#include <cstddef>

#include "src/gtopk/value/segments.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

struct Moments {
  double sum = 0;
  double squares = 0;
};

/// The order of summation is the same for any SIMD target and any pieces. acc is cut into chunks of
/// kMomentsChunk elements, from the first on. Within a chunk element i is added to partial sum i
/// mod kMomentsPartials, ascending by i; then partial j + w is added to partial j for w = 8, 4, 2,
/// 1. The sum of chunk c is added to partial sum c mod kMomentsGroups, ascending by c; then partial
/// j + w is added to partial j for w = 128, 64, ..., 1. All sums use double precision: each element
/// is widened first, and each product and each sum is rounded once.
inline constexpr std::size_t kMomentsChunk = 4096;
inline constexpr std::size_t kMomentsPartials = 16;
inline constexpr std::size_t kMomentsGroups = 256;

/// Returns the moments of acc = gradient + residual; `residual` may be null.
template <class T>
[[nodiscard]] Moments moments(Segments<const T> gradient, const Accumulation<T>* residual,
                              std::size_t d);

}  // namespace gtopk::sparse
