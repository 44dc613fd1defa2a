// Sparse, wire: `sign` and `2bit` store each value in one or two bits: its sign, and which of the
// one or two magnitudes of its block of 256 entries it has.
//
//   one level    the mean magnitude of the block (signSGD with a scale: Karimireddy et al., "Error
//                Feedback Fixes SignSGD", arXiv 1901.09847)
//   two levels   the mean of the magnitudes up to that mean, and the mean of those above it: one
//                step of Lloyd's quantizer. Selections have no small values, and levels such as
//                s/3 or 0 would stand for nothing in them.
//
// The scales come first, `Levels` for each block, ascending. Then come the codes, from the lowest
// bit of the first byte on: 1 for a negative value, plus 2 for the larger level. The rules for one
// block are in level_rules.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/level_rules.hpp"
#include "src/gtopk/wire/rounding.hpp"

namespace gtopk::sparse {

template <std::size_t Levels>
struct AsLevels : LevelRules<Levels> {
  using Rules = LevelRules<Levels>;
  using Rules::kBits;
  using Rules::kBlock;
  using Rules::kPerByte;
  template <class Value>
  using Scales = typename Rules::template Scales<Value>;

  static constexpr bool kRounds = true;
  static constexpr bool kByBlocks = true;
  static constexpr bool kTies = true;

  template <class Value>
  static std::size_t bytes(std::size_t count) {
    return Rules::template bytes<Value>(count);
  }

  template <class Value>
  static void write(const Value* values, std::size_t count, std::byte* out) {
    std::byte* codes = out + Rules::template scales_bytes<Value>(count);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, count);
      const auto [smaller, larger] = Rules::range_of(values + begin, end - begin);
      Scales<Value> scales;
      scales.front() = smaller;
      scales.back() = larger;
      std::memcpy(out + begin / kBlock * sizeof scales, scales.data(), sizeof scales);
      std::size_t i = begin;
      for (; i + kPerByte <= end; i += kPerByte) {
        *codes++ = Rules::packed(values + i, kPerByte, smaller);
      }
      if (i < end) {
        *codes++ = Rules::packed(values + i, end - i, smaller);
      }
    }
  }

  template <class Value>
  static void read(const std::byte* bytes, std::size_t count, Value* values) {
    const std::byte* codes = bytes + Rules::template scales_bytes<Value>(count);
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
          break;  // bits after the last value
        }
      }
      const bool one_level = (any & 2U) == 0 && scales.front() == scales.back();
      const bool two_levels = (any & 2U) != 0 && (all & 2U) == 0 && scales.front() < scales.back();
      if (rest != 0 || !(one_level || two_levels) || !Rules::is_scale(scales.front()) ||
          !Rules::is_scale(scales.back())) {
        throw Damaged("not a valid block of one or two levels");
      }
    }
  }

  template <class Value, class Index>
  static void round(EntriesOut<Value, Index> list, std::size_t count,
                    Rounding<Value, Index>& rounding) {
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, count);
      const typename Rules::template Block<Value> block(list.values + begin, end - begin);
      for (std::size_t i = begin; i < end; ++i) {
        const Value value = list.values[i];
        rounding.take(i, std::copysign(block.level(std::fabs(value)), value));
      }
    }
  }
};

}  // namespace gtopk::sparse
