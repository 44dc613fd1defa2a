// Sparse, value: the hashes of a count-sketch, and the fixed-point numbers in which its cells are
// summed. CPU and GPU share it. It does not know vectors or cells.
//
// Hashes are polynomials over the integers modulo 2^61 - 1. They have as many coefficients as there
// are indices that must be independent (Wegman and Carter, 1981): two for the cell, four for the
// sign.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/host_device.hpp"
#include "src/numbers/mix.hpp"

namespace gtopk::sparse {

__extension__ using Wide = unsigned __int128;

inline constexpr unsigned kHashBits = 61;
inline constexpr std::uint64_t kHashPrime = (std::uint64_t{1} << kHashBits) - 1;

// Arithmetic is modulo kHashPrime. The smaller of x and x - kHashPrime is the one that has not
// wrapped.
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t hash_plus(std::uint64_t a, std::uint64_t b) {
  return std::min(a + b, a + b - kHashPrime);
}
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t hash_times(std::uint64_t a, std::uint64_t b) {
  const Wide product = Wide{a} * b;
  return hash_plus(static_cast<std::uint64_t>(product) & kHashPrime,
                   static_cast<std::uint64_t>(product >> kHashBits));
}

/// The polynomial's value at x < kHashPrime; the coefficient of x^0 comes first.
template <std::size_t Coefficients>
[[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t polynomial(
    const std::uint64_t (&coefficients)[Coefficients], std::uint64_t x) {
  std::uint64_t value = 0;
  for (std::size_t power = Coefficients; power-- > 0;) {
    value = hash_plus(hash_times(value, x), coefficients[power]);
  }
  return value;
}

/// Hashes below kHashPrime pick the cell of a row and, in signed_by(), the sign.
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t cell_of(std::uint64_t hash,
                                                             std::uint64_t columns) {
  return static_cast<std::uint64_t>((Wide{hash} * columns) >> kHashBits);
}
/// Returns -value for odd hashes, else value.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE Value signed_by(std::uint64_t hash, Value value) {
  using Bits = Key<Value>;
  Bits bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits ^= static_cast<Bits>(hash) << (8 * sizeof(Bits) - 1);
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}
/// Does the same for an integer, modulo 2^64.
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t signed_by(std::uint64_t hash,
                                                               std::uint64_t number) {
  const std::uint64_t odd = hash & 1U;
  return (number ^ (0 - odd)) + odd;
}

struct SketchHashes {
  static constexpr std::size_t kRows = 5;
  struct Row {
    std::uint64_t cell[2];
    std::uint64_t sign[4];
  };

  Row rows[kRows];
  /// The number of columns of each row, at least 1.
  std::uint64_t columns;

  /// Draws hashes. Equal arguments give equal hashes on every machine.
  [[nodiscard]] static SketchHashes drawn_from(std::uint64_t seed, std::uint64_t columns) {
    SketchHashes hashes{};
    hashes.columns = columns;
    std::uint64_t number = 0;
    for (Row& row : hashes.rows) {
      for (std::uint64_t& coefficient : row.cell) {
        coefficient = drawn(seed, ++number) % kHashPrime;
      }
      for (std::uint64_t& coefficient : row.sign) {
        coefficient = drawn(seed, ++number) % kHashPrime;
      }
    }
    return hashes;
  }

  /// The number of cells of all rows, which lie one after the other.
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t cells() const { return kRows * columns; }
};

/// The median of the rows' estimates.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE Value median(Value a, Value b, Value c, Value d, Value e) {
  const auto lesser = [](Value x, Value y) { return y < x ? y : x; };
  const auto greater = [](Value x, Value y) { return x < y ? y : x; };
  // The smallest and the largest of four cannot be the median of five.
  const Value low = greater(lesser(a, b), lesser(c, d));
  const Value high = lesser(greater(a, b), greater(c, d));
  return greater(lesser(low, high), lesser(greater(low, high), e));
}

/// The fixed-point format of a cell, which is summed in multiples of a power of two, as 64-bit
/// integers. No sum of d of them overflows, so the order does not matter.
class FixedPoint {
 public:
  /// `largest` is the key of the largest |value| of d >= 1 values, which must be finite.
  template <class Value>
  [[nodiscard]] GTOPK_HOST_DEVICE static FixedPoint of(Key<Value> largest, std::uint64_t d) {
    Value magnitude = 0;
    std::memcpy(&magnitude, &largest, sizeof largest);
    const double wide = magnitude;
    std::uint64_t bits = 0;
    std::memcpy(&bits, &wide, sizeof bits);
    // Every |value| is below 2^above; subnormal doubles are below 2^-1022.
    const int above = static_cast<int>(bits >> 52U) - 1022;
    int digits = 62;  // digits of a value: 62 minus those of d, at most what round() takes
    for (; d != 0 && digits > 0; d >>= 1U) {
      --digits;
    }
    return FixedPoint((digits < kMostDigits ? digits : kMostDigits) - above);
  }

  /// Returns value * 2^scale, rounded to nearest, ties to even, modulo 2^64.
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t round(double value) const {
    const double scaled = value * power_of_two(scale_ / 2) * power_of_two(scale_ - scale_ / 2);
    constexpr double kShift = 0x1.8p52;  // a double of this size has no fraction bits
    return bits_of(scaled + kShift) - bits_of(kShift);
  }
  /// Returns number * 2^-scale, rounded to double and then to Value.
  template <class Value>
  [[nodiscard]] GTOPK_HOST_DEVICE Value value(std::uint64_t number) const {
    const auto whole = static_cast<double>(static_cast<std::int64_t>(number));
    const int half = scale_ / 2;
    return static_cast<Value>(whole * power_of_two(-half) * power_of_two(half - scale_));
  }

 private:
  static constexpr int kMostDigits = 51;

  GTOPK_HOST_DEVICE explicit FixedPoint(int scale) : scale_(scale) {}

  [[nodiscard]] GTOPK_HOST_DEVICE static std::uint64_t bits_of(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  /// Returns 2^exponent; requires -1022 <= exponent <= 1023.
  [[nodiscard]] GTOPK_HOST_DEVICE static double power_of_two(int exponent) {
    const std::uint64_t bits = static_cast<std::uint64_t>(exponent + 1023) << 52U;
    double power = 0;
    std::memcpy(&power, &bits, sizeof bits);
    return power;
  }

  int scale_;
};

}  // namespace gtopk::sparse
