// Numbers: the two 16-bit floating types as storage, and their conversions, done on integers so
// that every compiler, SIMD target and device rounds alike. They are not used for arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "src/numbers/host_device.hpp"

namespace gtopk {

/// The upper half of a float32: 8 exponent bits and 7 mantissa bits.
struct Bfloat16 {
  std::uint16_t bits;
};

/// IEEE 754 binary16: 5 exponent bits, 10 mantissa bits, subnormals down to 2^-24.
struct Float16 {
  std::uint16_t bits;
};

static_assert(sizeof(Bfloat16) == 2 && sizeof(Float16) == 2);

namespace detail {

[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint32_t float_bits(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

[[nodiscard]] GTOPK_HOST_DEVICE inline float float_of_bits(std::uint32_t bits) {
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace detail

/// Converts exactly.
[[nodiscard]] GTOPK_HOST_DEVICE inline float to_float(Bfloat16 value) {
  return detail::float_of_bits(static_cast<std::uint32_t>(value.bits) << 16U);
}

/// Converts exactly; a NaN keeps its payload.
[[nodiscard]] GTOPK_HOST_DEVICE inline float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // Inf, NaN
    return detail::float_of_bits(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13U));
  }
  if (magnitude < 0x400U) {  // zero, subnormal: an integer times 2^-24
    const float value_of = static_cast<float>(magnitude) * 0x1p-24F;
    return detail::float_of_bits(sign | detail::float_bits(value_of));
  }
  return detail::float_of_bits(sign | ((magnitude << 13U) + 0x38000000U));
}

/// Rounds to nearest, ties to even. Values that are too large become Inf; NaN stays NaN.
[[nodiscard]] GTOPK_HOST_DEVICE inline Bfloat16 to_bfloat16(float value) {
  const std::uint32_t bits = detail::float_bits(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {  // rounding up could carry a NaN into Inf
    return {static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U)};
}

/// Rounds to nearest, ties to even. Values that are too large become Inf; NaN stays NaN.
[[nodiscard]] GTOPK_HOST_DEVICE inline Float16 to_float16(float value) {
  const std::uint32_t bits = detail::float_bits(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t rounded = 0;
  if (magnitude > 0x7F800000U) {
    rounded = 0x7E00U;
  } else if (magnitude >= 0x47800000U) {  // 2^16 and more
    rounded = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14 and more: normal; a carry may make it Inf
    const std::uint32_t rebased = magnitude - 0x38000000U;
    rounded = (rebased + 0xFFFU + ((rebased >> 13U) & 1U)) >> 13U;
  } else if (magnitude > 0x33000000U) {  // more than 2^-25, half of the least subnormal
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const std::uint32_t shift = 126U - (magnitude >> 23U);
    const std::uint32_t half = 1U << (shift - 1U);
    rounded = (mantissa + (half - 1U) + ((mantissa >> shift) & 1U)) >> shift;
  }
  return {static_cast<std::uint16_t>(sign | rounded)};
}

}  // namespace gtopk
