// Sparse, wire: one block of values of the wire `4bit`: a unit for the block, and for each value
// one of sixteen levels, which are whole multiples of the unit. CPU and GPU share it, so that both
// round alike and write the same bytes. The rules do not know lists.
//
// The levels suit bell-shaped values. The value of largest magnitude is always 127 units, because
// the unit takes its sign (docs/algorithms.md has the measured errors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse {

/// The level of code 0 to 15, in units; they ascend.
[[nodiscard]] constexpr GTOPK_HOST_DEVICE int four_bit_level(unsigned code) {
  constexpr int kLevels[] = {-110, -85, -65, -48, -34, -21, -10, 0,
                             10,   20,  31,  45,  60,  79,  100, 127};
  return kLevels[code];
}

/// Whether this many units are beyond the middle between this level and the one below. Exactly in
/// the middle, the level nearer to 0 is taken, so whether a value becomes zero does not depend on
/// the unit's sign.
[[nodiscard]] constexpr GTOPK_HOST_DEVICE bool reaches_level(int units, unsigned code) {
  const int middle = four_bit_level(code - 1) + four_bit_level(code);
  return 2 * units > middle || (2 * units == middle && middle < 0);
}

/// The levels of a block. Value is float or double. The unit is zero for a block of zeros, and NaN
/// for a block in which a value is not finite.
template <class Value>
class FourBits {
 public:
  static constexpr std::size_t kBlock = 64;
  static constexpr int kMost = four_bit_level(15);
  /// The code of level 0.
  static constexpr unsigned kZero = 7;
  /// The type of a unit in a message, which holds the upper half of its bits.
  using Stored = std::conditional_t<std::is_same_v<Value, double>, std::uint32_t, std::uint16_t>;

  explicit GTOPK_HOST_DEVICE FourBits(Value unit)
      : unit_(unit), inverse_(unit == 0 ? Value{0} : 1 / unit) {}

  /// Returns the unit of finite values. `greatest` and `least` are the largest and the smallest of
  /// these values and
  /// 0. The unit is zero if all values become zero.
  [[nodiscard]] static GTOPK_HOST_DEVICE Value unit_of(Value greatest, Value least) {
    constexpr Value kSmallest = std::numeric_limits<Value>::min();
    const bool upright = greatest >= -least;
    const Value largest = upright ? greatest : -least;
    if (largest == 0) {
      return 0;
    }
    if (largest < kMost * kSmallest) {
      // The inverse of kSmallest is still finite.
      return FourBits(kSmallest).code(largest) == kZero ? 0 : kSmallest;
    }
    const Value unit = of_stored(stored_of(largest / kMost));
    return upright ? unit : -unit;
  }

  [[nodiscard]] static GTOPK_HOST_DEVICE Stored stored_of(Value unit) {
    Key<Value> bits = 0;
    std::memcpy(&bits, &unit, sizeof bits);
    return static_cast<Stored>(bits >> kHalf);
  }
  [[nodiscard]] static GTOPK_HOST_DEVICE Value of_stored(Stored stored) {
    const Key<Value> bits = Key<Value>{stored} << kHalf;
    Value unit = 0;
    std::memcpy(&unit, &bits, sizeof unit);
    return unit;
  }

  /// Reads a unit that stored_of() has returned.
  [[nodiscard]] static GTOPK_HOST_DEVICE Value read(const std::byte* bytes) {
    Stored stored = 0;
    std::memcpy(&stored, bytes, sizeof stored);
    return of_stored(stored);
  }

  /// The code of the level nearest to this many units.
  [[nodiscard]] static GTOPK_HOST_DEVICE unsigned code_of(int units) {
    unsigned code = 0;
    for (unsigned next = 1; next < 16; ++next) {
      code += reaches_level(units, next) ? 1 : 0;
    }
    return code;
  }

  [[nodiscard]] GTOPK_HOST_DEVICE Stored stored() const { return stored_of(unit_); }
  [[nodiscard]] GTOPK_HOST_DEVICE Value inverse() const { return inverse_; }
  /// Rounds to the nearest whole number of units, ties to even, then to the nearest level.
  [[nodiscard]] GTOPK_HOST_DEVICE unsigned code(Value value) const {
    constexpr Value kToWhole = Value{3} * (Value{1} / std::numeric_limits<Value>::epsilon()) / 2;
    return code_of(static_cast<int>((value * inverse_ + kToWhole) - kToWhole));
  }
  /// Returns the value of a code; for level 0 it is +0, whatever the unit's sign.
  [[nodiscard]] GTOPK_HOST_DEVICE Value value(unsigned code) const {
    return static_cast<Value>(four_bit_level(code)) * unit_ + Value{0};
  }

 private:
  static constexpr int kHalf = 4 * sizeof(Value);

  Value unit_;
  Value inverse_;
};

}  // namespace gtopk::sparse
