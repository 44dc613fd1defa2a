// Sparse, wire room: of each value its sign and one of one or two magnitudes of its block of 256
// entries, in a bit or two: `sign` and `2bit`.
//
//   one level    the mean magnitude of the block (signSGD with a scale: Karimireddy et al., "Error
//                Feedback Fixes SignSGD", arXiv 1901.09847)
//   two levels   the mean of the magnitudes up to that mean, and the mean of those above it: one
//                step of Lloyd's quantizer. Selections have no small values, and levels such as
//                s/3 or 0 would stand for nothing in them.
//
// Behind the scales, `Levels` for each block from the lowest on, come the codes from the lowest
// bit of the first byte on: 1 for a negative value, and 2 for the larger level.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/rounding.hpp"

namespace gtopk::sparse {

template <std::size_t Levels>
struct AsLevels {
  static_assert(Levels == 1 || Levels == 2);
  static constexpr bool kRounds = true;
  static constexpr bool kByBlocks = true;
  static constexpr bool kTies = true;
  static constexpr std::size_t kBlock = 256;
  static constexpr std::size_t kBits = Levels;
  static constexpr std::size_t kPerByte = 8 / kBits;
  static_assert(kBlock % kPerByte == 0, "each block's codes begin with a byte");

  /// From the lowest on. Of two that are alike only the first is used.
  template <class Value>
  using Scales = std::array<Value, Levels>;

  template <class Value>
  static std::size_t bytes(std::size_t count) {
    return scales_bytes<Value>(count) + (count + kPerByte - 1) / kPerByte;
  }

  template <class Value>
  static void write(const Value* values, std::size_t count, std::byte* out) {
    std::byte* codes = out + scales_bytes<Value>(count);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, count);
      const auto [smaller, larger] = range_of(values + begin, end - begin);
      Scales<Value> scales;
      scales.front() = smaller;
      scales.back() = larger;
      std::memcpy(out + begin / kBlock * sizeof scales, scales.data(), sizeof scales);
      std::size_t i = begin;
      for (; i + kPerByte <= end; i += kPerByte) {
        *codes++ = packed(values + i, kPerByte, smaller);
      }
      if (i < end) {
        *codes++ = packed(values + i, end - i, smaller);
      }
    }
  }

  template <class Value>
  static void read(const std::byte* bytes, std::size_t count, Value* values) {
    const std::byte* codes = bytes + scales_bytes<Value>(count);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, count);
      Scales<Value> scales;
      std::memcpy(scales.data(), bytes + begin / kBlock * sizeof scales, sizeof scales);
      const std::array<Value, 4> meant = {scales.front(), -scales.front(), scales.back(),
                                          -scales.back()};
      unsigned any = 0;
      unsigned all = ~0U;
      unsigned rest = 0;
      for (std::size_t i = begin; i < end; i += kPerByte) {
        rest = std::to_integer<unsigned>(*codes++);
        for (std::size_t j = i; j < std::min(i + kPerByte, end); ++j) {
          const unsigned code = rest % (1U << kBits);
          values[j] = meant[code];
          any |= code;
          all &= code;
          rest >>= kBits;
        }
        if (rest != 0) {
          break;  // bits behind the last value
        }
      }
      const bool one_level = (any & 2U) == 0 && scales.front() == scales.back();
      const bool two_levels = (any & 2U) != 0 && (all & 2U) == 0 && scales.front() < scales.back();
      if (rest != 0 || !(one_level || two_levels) || !is_scale(scales.front()) ||
          !is_scale(scales.back())) {
        throw Damaged("values that no block of one or two levels has");
      }
    }
  }

  template <class Value, class Index>
  static void round(EntriesOut<Value, Index> list, std::size_t count,
                    Rounding<Value, Index>& rounding) {
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, count);
      const Block<Value> block(list.values + begin, end - begin);
      for (std::size_t i = begin; i < end; ++i) {
        const Value value = list.values[i];
        rounding.take(i, std::copysign(block.level(std::fabs(value)), value));
      }
    }
  }

 private:
  /// The smallest and the largest magnitude.
  template <class Value>
  static std::pair<Value, Value> range_of(const Value* values, std::size_t count) {
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
  static std::byte packed(const Value* values, std::size_t count, Value smaller) {
    unsigned byte = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned negative = std::signbit(values[i]) ? 1 : 0;
      const unsigned larger = Levels == 2 && std::fabs(values[i]) > smaller ? 2 : 0;
      byte |= (negative | larger) << i * kBits;
    }
    return static_cast<std::byte>(byte);
  }

  /// The magnitudes of a block up to a limit, and those above it, added one after the other.
  template <class Value>
  class Sums {
   public:
    Sums(const Value* values, std::size_t count, double limit, double scale = 1)
        : values_(values), count_(count), limit_(limit), scale_(scale) {
      for (std::size_t i = 0; i < count; ++i) {
        const double magnitude = std::fabs(values[i]);
        // A mask, and no branch: which side a value is on cannot be predicted.
        const std::uint64_t larger = magnitude > limit ? 1 : 0;
        const auto bits = std::bit_cast<std::uint64_t>(magnitude * scale);
        small_ += std::bit_cast<double>(bits & (larger - 1));
        large_ += std::bit_cast<double>(bits & (0 - larger));
        larger_ += larger;
      }
    }

    /// Magnitudes that lie in [least, most] have a mean that does, whatever rounding does.
    [[nodiscard]] double mean_of_small(double least, double most) const {
      if (std::isinf(small_)) {
        return scaled_down().mean_of_small(least, most);
      }
      return std::clamp(small_ / static_cast<double>(count_ - larger_) / scale_, least, most);
    }
    [[nodiscard]] double mean_of_large(double least, double most) const {
      if (std::isinf(large_)) {
        return scaled_down().mean_of_large(least, most);
      }
      return std::clamp(large_ / static_cast<double>(larger_) / scale_, least, most);
    }

   private:
    /// Of doubles near the largest, whose sum overflows.
    [[nodiscard]] Sums scaled_down() const { return {values_, count_, limit_, 0.5 / kBlock}; }

    const Value* values_;
    std::size_t count_;
    double limit_;
    double scale_;
    double small_ = 0;
    double large_ = 0;
    std::size_t larger_ = 0;
  };

  /// The levels of a block's values, none of which is zero.
  template <class Value>
  class Block {
   public:
    Block(const Value* values, std::size_t count) {
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

    [[nodiscard]] Value level(Value magnitude) const {
      return levels_[Levels == 2 && magnitude > mean_ ? Levels - 1 : 0];
    }

   private:
    double mean_ = 0;
    Scales<Value> levels_;
  };

  template <class Value>
  static std::size_t scales_bytes(std::size_t count) {
    return (count + kBlock - 1) / kBlock * sizeof(Scales<Value>);
  }

  /// Its 24 highest bits, as many as float32 has: sums of a block of them are exact, so that
  /// rounding what is rounded changes nothing.
  template <class Value>
  static Value level_of(double mean) {
    constexpr int kScaleBits = std::numeric_limits<float>::digits;
    int exponent = 0;
    const double fraction = std::frexp(mean, &exponent);
    return static_cast<Value>(
        std::ldexp(std::trunc(std::ldexp(fraction, kScaleBits)), exponent - kScaleBits));
  }
  template <class Value>
  static bool is_scale(Value scale) {
    return scale > 0 && scale <= std::numeric_limits<Value>::max() &&
           level_of<Value>(scale) == scale;
  }
};

}  // namespace gtopk::sparse
