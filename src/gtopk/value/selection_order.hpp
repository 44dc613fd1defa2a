// Sparse, value: the one total order by which entries are selected (|value| descending, then index
// ascending), on integers. CPU and GPU share it. It does not know lists or algorithms.
#pragma once

#include <cstdint>
#include <cstring>

#include "src/numbers/host_device.hpp"

namespace gtopk::sparse {

/// The bits of |value|: unsigned integers in the order of the magnitudes, zero for both zeros,
/// and at least the key of Inf for Inf and NaN alike.
template <class Value>
struct MagnitudeKey;

template <>
struct MagnitudeKey<float> {
  using Type = std::uint32_t;
  static constexpr Type kSignless = 0x7FFFFFFFU;
  static constexpr Type kInfinity = 0x7F800000U;
};

template <>
struct MagnitudeKey<double> {
  using Type = std::uint64_t;
  static constexpr Type kSignless = 0x7FFFFFFFFFFFFFFFU;
  static constexpr Type kInfinity = 0x7FF0000000000000U;
};

template <class Value>
using Key = typename MagnitudeKey<Value>::Type;

template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE inline Key<Value> magnitude_key(Value value) {
  Key<Value> bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & MagnitudeKey<Value>::kSignless;
}

/// Whether a key is finite; false for the keys of Inf and NaN.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE inline bool is_finite_key(Key<Value> key) {
  return key < MagnitudeKey<Value>::kInfinity;
}

}  // namespace gtopk::sparse
