// Sparse, wire: the levels of one block of values of `sign` and `2bit` (levels.hpp), and the larger
// one of `ternary` (block_formats.hpp). CPU and GPU share them, so that both round alike and write
// the same bytes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "src/numbers/host_device.hpp"

namespace gtopk::sparse {

template <std::size_t Levels>
struct LevelRules {
  static_assert(Levels == 1 || Levels == 2);
  static constexpr std::size_t kBlock = 256;
  static constexpr std::size_t kBits = Levels;
  static constexpr std::size_t kPerByte = 8 / kBits;
  static_assert(kBlock % kPerByte == 0, "each block's codes begin with a byte");

  /// The levels, ascending. If two are equal, only the first is used.
  template <class Value>
  using Scales = std::array<Value, Levels>;

  template <class Value>
  GTOPK_HOST_DEVICE static std::size_t scales_bytes(std::size_t count) {
    return (count + kBlock - 1) / kBlock * sizeof(Scales<Value>);
  }

  /// The bytes that the values of this many entries take.
  template <class Value>
  GTOPK_HOST_DEVICE static std::size_t bytes(std::size_t count) {
    return scales_bytes<Value>(count) + (count + kPerByte - 1) / kPerByte;
  }

  /// The smallest and the largest magnitude.
  template <class Value>
  GTOPK_HOST_DEVICE static std::pair<Value, Value> range_of(const Value* values,
                                                            std::size_t count) {
    Value smallest = std::fabs(values[0]);
    Value largest = smallest;
    for (std::size_t i = 1; i < count; ++i) {
      const Value magnitude = std::fabs(values[i]);
      smallest = magnitude < smallest ? magnitude : smallest;
      largest = magnitude > largest ? magnitude : largest;
    }
    return {smallest, largest};
  }

  /// The codes of up to a byte of values.
  template <class Value>
  GTOPK_HOST_DEVICE static std::byte packed(const Value* values, std::size_t count, Value smaller) {
    unsigned byte = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned negative = std::signbit(values[i]) ? 1 : 0;
      const unsigned larger = Levels == 2 && std::fabs(values[i]) > smaller ? 2 : 0;
      byte |= (negative | larger) << i * kBits;
    }
    return static_cast<std::byte>(byte);
  }

  template <class Value>
  GTOPK_HOST_DEVICE static bool is_scale(Value scale) {
    return scale > 0 && scale <= std::numeric_limits<Value>::max() &&
           level_of<Value>(scale) == scale;
  }

 private:
  /// The sums of a block's magnitudes up to a limit, and of the magnitudes above it, added one
  /// after the other.
  template <class Value>
  class Sums {
   public:
    GTOPK_HOST_DEVICE Sums(const Value* values, std::size_t count, double limit, double scale = 1)
        : values_(values), count_(count), limit_(limit), scale_(scale) {
      for (std::size_t i = 0; i < count; ++i) {
        const double magnitude = std::fabs(values[i]);
        // Use a mask instead of a branch, because the side of a value cannot be predicted.
        const std::uint64_t larger = magnitude > limit ? 1 : 0;
        const auto bits = std::bit_cast<std::uint64_t>(magnitude * scale);
        small_ += std::bit_cast<double>(bits & (larger - 1));
        large_ += std::bit_cast<double>(bits & (0 - larger));
        larger_ += larger;
      }
    }

    /// The mean of the magnitudes up to the limit. They lie in [least, most], and so does the mean,
    /// whatever rounding does.
    [[nodiscard]] GTOPK_HOST_DEVICE double mean_of_small(double least, double most) const {
      if (std::isinf(small_)) {
        return scaled_down().mean_of_small(least, most);
      }
      return std::clamp(small_ / static_cast<double>(count_ - larger_) / scale_, least, most);
    }
    [[nodiscard]] GTOPK_HOST_DEVICE double mean_of_large(double least, double most) const {
      if (std::isinf(large_)) {
        return scaled_down().mean_of_large(least, most);
      }
      return std::clamp(large_ / static_cast<double>(larger_) / scale_, least, most);
    }

   private:
    /// The sums for doubles near the largest double, whose plain sum overflows.
    [[nodiscard]] GTOPK_HOST_DEVICE Sums scaled_down() const {
      return {values_, count_, limit_, 0.5 / kBlock};
    }

    const Value* values_;
    std::size_t count_;
    double limit_;
    double scale_;
    double small_ = 0;
    double large_ = 0;
    std::size_t larger_ = 0;
  };

 public:
  /// The levels of a block's values.
  template <class Value>
  class Block {
   public:
    GTOPK_HOST_DEVICE Block(const Value* values, std::size_t count) {
      const auto [smallest, largest] = range_of(values, count);
      const double infinity = std::numeric_limits<double>::infinity();
      mean_ = Sums(values, count, infinity).mean_of_small(smallest, largest);
      levels_.fill(level_of<Value>(mean_));
      if (Levels == 2 && mean_ < largest) {
        const Sums sums(values, count, mean_);
        levels_.front() = level_of<Value>(sums.mean_of_small(smallest, mean_));
        levels_.back() = level_of<Value>(sums.mean_of_large(mean_, largest));
      }
    }

    /// Magnitudes above the mean have the larger level.
    [[nodiscard]] GTOPK_HOST_DEVICE double mean() const { return mean_; }
    /// The largest value that is not above the mean: a magnitude is above both or neither.
    [[nodiscard]] GTOPK_HOST_DEVICE Value limit() const { return limit_of<Value>(mean_); }
    [[nodiscard]] GTOPK_HOST_DEVICE Value smaller() const { return levels_.front(); }
    [[nodiscard]] GTOPK_HOST_DEVICE Value larger() const { return levels_.back(); }
    [[nodiscard]] GTOPK_HOST_DEVICE Value level(Value magnitude) const {
      return levels_[Levels == 2 && magnitude > mean_ ? Levels - 1 : 0];
    }

   private:
    double mean_ = 0;
    Scales<Value> levels_;
  };

  /// The largest value that is not above the mean.
  template <class Value>
  GTOPK_HOST_DEVICE static Value limit_of(double mean) {
    const auto limit = static_cast<Value>(mean);
    return limit > mean ? std::nextafter(limit, Value{0}) : limit;
  }

  /// The mean's 24 highest bits, which is as many as float32 has. Sums of a block of such levels
  /// are exact, so rounding again changes nothing.
  template <class Value>
  GTOPK_HOST_DEVICE static Value level_of(double mean) {
    constexpr int kScaleBits = std::numeric_limits<float>::digits;
    int exponent = 0;
    const double fraction = std::frexp(mean, &exponent);
    return static_cast<Value>(
        std::ldexp(std::trunc(std::ldexp(fraction, kScaleBits)), exponent - kScaleBits));
  }
};

}  // namespace gtopk::sparse
