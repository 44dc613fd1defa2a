// Numbers: the type in which a tensor's elements are accumulated, the conversion to it, and the
// rounding of results. CPU and GPU share it. It does not know lists.
#pragma once

#include <type_traits>

#include "src/numbers/half.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk {

/// The type of acc, merge and residual: float for the half types, else the tensor's own.
template <class T>
using Accumulation = std::conditional_t<std::is_same_v<T, double>, double, float>;

[[nodiscard]] GTOPK_HOST_DEVICE inline float widen(float value) { return value; }
[[nodiscard]] GTOPK_HOST_DEVICE inline double widen(double value) { return value; }
[[nodiscard]] GTOPK_HOST_DEVICE inline float widen(Bfloat16 value) { return to_float(value); }
[[nodiscard]] GTOPK_HOST_DEVICE inline float widen(Float16 value) { return to_float(value); }

/// Rounds a value once, to nearest, ties to even.
template <class T>
[[nodiscard]] GTOPK_HOST_DEVICE inline T narrow(Accumulation<T> value) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return to_bfloat16(value);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(value);
  } else {
    return value;
  }
}

/// acc = gradient + residual, in the accumulation type. A missing residual counts as zero and is
/// still added: -0 + 0 is +0, whether the zero was stored or not.
template <class T>
[[nodiscard]] GTOPK_HOST_DEVICE inline Accumulation<T> accumulate_one(T gradient,
                                                                      Accumulation<T> residual) {
  return widen(gradient) + residual;
}

}  // namespace gtopk
