// Sparse, wire: `4bit` stores each value as one of sixteen levels of its block, which is 64 entries
// of the rounded list; entries rounded to zero leave the list. A block consists of its unit and
// then the codes of two entries in each byte: of n entries, i in the low half of byte i, and i +
// ceil(n/2) in the high half. The rules for one value are in four_bit_rules.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/wire/block_rounding.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/four_bit_rules.hpp"
#include "src/gtopk/wire/rounding.hpp"

namespace gtopk::sparse {

/// Finds the levels of finite values that are added one by one.
template <class Value>
class FourBitGrid {
 public:
  bool take(Value value) {
    if (value <= greatest_ && value >= least_) {
      return false;
    }
    greatest_ = std::max(greatest_, value);
    least_ = std::min(least_, value);
    levels_ = FourBits<Value>(unit());
    return true;
  }
  [[nodiscard]] Value rounded(Value value) const { return levels_.value(levels_.code(value)); }
  [[nodiscard]] Value unit() const { return FourBits<Value>::unit_of(greatest_, least_); }

 private:
  Value greatest_ = 0;
  Value least_ = 0;
  FourBits<Value> levels_{0};
};

struct As4Bit {
  static constexpr bool kRounds = true;
  static constexpr bool kByBlocks = true;
  static constexpr bool kTies = true;
  static constexpr std::size_t kBlock = FourBits<float>::kBlock;

  /// The bytes that a block of this many values takes.
  template <class Value>
  static constexpr std::size_t block_bytes(std::size_t count) {
    return sizeof(typename FourBits<Value>::Stored) + (count + 1) / 2;
  }
  template <class Value>
  static constexpr std::size_t bytes(std::size_t count) {
    const std::size_t rest = count % kBlock;
    return count / kBlock * block_bytes<Value>(kBlock) + (rest == 0 ? 0 : block_bytes<Value>(rest));
  }

  /// Writes a block of finite values that has this unit.
  template <class Value>
  static void write_block(Value unit, const Value* values, std::size_t count, std::byte* out) {
    const auto stored = FourBits<Value>::stored_of(unit);
    std::memcpy(out, &stored, sizeof stored);
    out += sizeof stored;
    const FourBits<Value> levels(unit);
    const std::size_t half = (count + 1) / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const unsigned high = i + half < count ? levels.code(values[i + half]) : 0;
      out[i] = static_cast<std::byte>(levels.code(values[i]) | high << 4U);
    }
  }
  /// Reads a block, and returns its unit.
  template <class Value>
  static Value read_block(const std::byte* bytes, std::size_t count, Value* values) {
    const Value unit = FourBits<Value>::read(bytes);
    bytes += sizeof(typename FourBits<Value>::Stored);
    const FourBits<Value> levels(unit);
    const std::size_t half = (count + 1) / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const auto both = std::to_integer<unsigned>(bytes[i]);
      values[i] = levels.value(both % 16);
      if (i + half < count) {
        values[i + half] = levels.value(both / 16);
      }
    }
    return unit;
  }

  template <class Value>
  static void write(const Value* values, std::size_t count, std::byte* out) {
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t length = std::min(kBlock, count - begin);
      write_block(grid_of(values + begin, length).unit(), values + begin, length,
                  out + bytes<Value>(begin));
    }
  }
  template <class Value>
  static void read(const std::byte* in, std::size_t count, Value* values) {
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t length = std::min(kBlock, count - begin);
      const std::byte* const block = in + bytes<Value>(begin);
      const Value unit = read_block(block, length, values + begin);
      const bool zeros =
          std::find(values + begin, values + begin + length, Value{0}) != values + begin + length;
      const bool beyond =
          length % 2 != 0 && std::to_integer<unsigned>(block[block_bytes<Value>(length) - 1]) > 15;
      if (zeros || beyond || !is_finite_key<Value>(magnitude_key(unit)) ||
          grid_of(values + begin, length).unit() != unit) {
        throw Damaged("not a valid 4bit block");
      }
    }
  }
  template <class Value, class Index>
  static void round(EntriesOut<Value, Index> list, std::size_t count,
                    Rounding<Value, Index>& rounding) {
    round_by_blocks<FourBitGrid>(list, count, kBlock, rounding);
  }

 private:
  template <class Value>
  static FourBitGrid<Value> grid_of(const Value* values, std::size_t count) {
    FourBitGrid<Value> grid;
    std::for_each(values, values + count, [&grid](Value value) { grid.take(value); });
    return grid;
  }
};

}  // namespace gtopk::sparse
