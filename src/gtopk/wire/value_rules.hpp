// Sparse, wire: how one value is written into a message and read back. CPU and GPU share these
// rules, so that both round alike and write the same bytes. The rules do not know lists.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "src/gtopk/value/selection_order.hpp"
#include "src/gtopk/wire/rice_rules.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse {

/// Rounds to a half type; for float16, larger magnitudes saturate at its largest value.
template <class Half, class Value>
[[nodiscard]] GTOPK_HOST_DEVICE inline Half to_half(Value value) {
  if constexpr (std::is_same_v<Half, Float16>) {
    constexpr Value kLargest = 65504;
    value = value < -kLargest ? -kLargest : (kLargest < value ? kLargest : value);
  }
  return narrow<Half>(static_cast<float>(value));
}

/// For `int8`, the number of entries that share an exponent, and the largest integer.
inline constexpr std::size_t kInt8Block = 256;
inline constexpr int kInt8Most = 127;

/// Returns the least e for which 127 2^e is at least the nonzero magnitude that has this key. The
/// magnitude is 64 to 127 times 2^e, or rounds to 64 times it.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE inline int int8_exponent(Key<Value> key) {
  constexpr int kFraction = std::numeric_limits<Value>::digits - 1;
  constexpr int kBias = std::numeric_limits<Value>::max_exponent - 1;
  constexpr Key<Value> kOne = Key<Value>{1} << kFraction;
  int exponent = static_cast<int>(key >> kFraction) - kBias;
  Key<Value> significand = (key & (kOne - 1)) | kOne;
  if (key < kOne) {  // denormal
    const int missing = kFraction + 1 - static_cast<int>(rice::bit_width(key));
    exponent = 1 - kBias - missing;
    significand = key << missing;
  }
  constexpr Key<Value> kWhole = kOne / 64;  // 1 in units of 2^(exponent - 6)
  const int e = exponent - 6;
  return significand <= kInt8Most * kWhole ? e : e + 1;
}

/// Returns 2^e, for -1022 <= e <= 1023.
[[nodiscard]] GTOPK_HOST_DEVICE inline double power_of_two(int e) {
  const std::uint64_t bits = static_cast<std::uint64_t>(e + 1023) << 52U;
  double power = 0;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

/// Multiplies by 2^e and by its inverse. For float every valid e, and every scaled value, is a
/// normal double, so one multiplication is exact. For double there are two multiplications, and the
/// first is exact. An e that no value has gives infinity or zero, never the quotient from which it
/// was made.
template <class Value>
class Int8Scale {
 public:
  explicit GTOPK_HOST_DEVICE Int8Scale(int e) {
    constexpr bool kIsDouble = std::is_same_v<Value, double>;
    constexpr int kLeast = -1022;
    constexpr int kMost = 1023;
    constexpr int kBeyond = kIsDouble ? 1100 : 1022;
    e = e < -kBeyond ? -kBeyond : (e > kBeyond ? kBeyond : e);
    if constexpr (kIsDouble) {
      const int up = e < kLeast ? kLeast : (e > kMost ? kMost : e);
      const int down = -e < kLeast ? kLeast : (-e > kMost ? kMost : -e);
      up_ = power_of_two(up);
      up_rest_ = power_of_two(e - up);
      down_ = power_of_two(down);
      down_rest_ = power_of_two(-e - down);
    } else {
      up_ = power_of_two(e);
      down_ = power_of_two(-e);
    }
  }

  /// Rounds a magnitude of at most 127 to nearest, ties to even.
  [[nodiscard]] GTOPK_HOST_DEVICE double quotient(Value value) const {
    constexpr double kToWhole = 0x1.8p52;  // adding it leaves no bits for a fraction
    return (scaled(value, down_, down_rest_) + kToWhole) - kToWhole;
  }
  [[nodiscard]] GTOPK_HOST_DEVICE Value times(double q) const {
    return static_cast<Value>(scaled(q, up_, up_rest_));
  }

 private:
  [[nodiscard]] static GTOPK_HOST_DEVICE double scaled(double value, double factor, double rest) {
    return std::is_same_v<Value, float> ? value * factor : value * factor * rest;
  }

  double up_ = 1;
  double up_rest_ = 1;
  double down_ = 1;
  double down_rest_ = 1;
};

}  // namespace gtopk::sparse
