// Sparse, select: the rules by which approximate selectors reach a threshold and correct it. CPU
// and GPU share them. They do not know lists.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse {

/// Counts n with least * k <= unit * n <= most * k are within bounds. If there are fewer, the
/// threshold is multiplied by `down`; if there are more, by `up`.
struct Correction {
  std::uint64_t unit = 3;
  std::uint64_t least = 2;
  std::uint64_t most = 4;
  double down = 0.5;
  double up = 1.5;
  /// The most corrections before the count is accepted as it is.
  int times = 3;
  /// On the CPU, a sweep begins at the threshold times this factor, so that corrections down to it
  /// need no new sweep. It affects only time.
  double ahead = 0.5;

  [[nodiscard]] GTOPK_HOST_DEVICE bool too_few(std::uint64_t count, std::uint64_t k) const {
    return unit * count < least * k;
  }
  [[nodiscard]] GTOPK_HOST_DEVICE bool too_many(std::uint64_t count, std::uint64_t k) const {
    return unit * count > most * k;
  }
};

/// The correction of the selector `gaussian`.
inline constexpr Correction kGaussianCorrection{};
inline constexpr Correction kSampledCorrection{
    .unit = 10, .least = 8, .most = 13, .down = 0.8, .up = 1.3, .times = 10, .ahead = 0.64};
inline constexpr Correction kThresholdCorrection{
    .unit = 3, .least = 2, .most = 4, .down = 0.975, .up = 1.025, .times = 8, .ahead = 0.8};

/// The smallest key, at least 1, of a magnitude that reaches the threshold: any nonzero magnitude
/// reaches a threshold of 0 or less, and no finite one reaches NaN.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE Key<Value> key_reaching(double threshold) {
  if (threshold <= 0) {
    return 1;
  }
  if (!(threshold <= static_cast<double>(std::numeric_limits<Value>::max()))) {
    return MagnitudeKey<Value>::kInfinity;
  }
  const auto nearest = static_cast<Value>(threshold);
  const Key<Value> key = magnitude_key(nearest);
  const Key<Value> reaching = static_cast<double>(nearest) < threshold ? key + 1 : key;
  return reaching == 0 ? 1 : reaching;
}

template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE double magnitude_of(Key<Value> key) {
  Value value = 0;
  std::memcpy(&value, &key, sizeof value);
  return value;
}

/// The first threshold of `gaussian`: mean and deviation of d elements from their sum and sum of
/// squares, and the quantile of a normal distribution.
[[nodiscard]] GTOPK_HOST_DEVICE inline double normal_threshold(double sum, double squares,
                                                               std::uint64_t d, double quantile) {
  const auto count = static_cast<double>(d);
  const double mean = sum / count;
  const double variance = squares / count - mean * mean;
  const double deviation = variance > 0 ? std::sqrt(variance) : 0;  // rounding may make it negative
  return mean + deviation * quantile;
}

}  // namespace gtopk::sparse
