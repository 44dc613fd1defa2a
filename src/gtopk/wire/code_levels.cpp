// Sparse, wire: encodes whole blocks of `2bit`, `ternary` and `sign`, and decodes `ternary`, in
// SIMD, compiled once per target. If all sums of a block are exact, their order does not matter;
// other blocks are encoded value by value.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "src/gtopk/wire/code_blocks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/gtopk/wire/code_levels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/gtopk/wire/block_formats.hpp"
#include "src/gtopk/wire/block_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

template <std::size_t Levels>
void encode_levels(const float* values, std::size_t blocks, std::byte* out) {
  using Format = LevelBlocks<Levels>;
  for (std::size_t block = 0; block < blocks; ++block) {
    Format::encode(values + block * Format::kBlock, Format::kBlock,
                   out + block * Format::template bytes<float>(Format::kBlock));
  }
}

void encode_ternary(const float* values, std::size_t blocks, std::byte* out) {
  using Format = TernaryBlocks;
  for (std::size_t block = 0; block < blocks; ++block) {
    Format::encode(values + block * Format::kBlock, Format::kBlock,
                   out + block * Format::bytes<float>(Format::kBlock));
  }
}

void decode_ternary(const std::byte* in, std::size_t blocks, float* values) {
  using Format = TernaryBlocks;
  for (std::size_t block = 0; block < blocks; ++block) {
    Format::decode(in + block * Format::bytes<float>(Format::kBlock), Format::kBlock,
                   values + block * Format::kBlock);
  }
}

#else

using Doubles = hn::RepartitionToWide<Floats>;
using FewFloats = hn::Rebind<float, Doubles>;

/// Whether sums of a block's magnitudes have the same bits in any order. They are exact in double
/// if the exponent of the largest is at most 21 above the exponent of the smallest nonzero one: a
/// magnitude has 24 bits, a sum of 256 of them has 8 more, and a sum of more than 256 has 9 more.
template <std::size_t Count>
HWY_INLINE bool sums_are_exact(const float* values, std::uint32_t largest) {
  constexpr std::uint32_t kFraction = std::numeric_limits<float>::digits - 1;
  const Int32s di;
  const hn::RebindToUnsigned<Int32s> du;
  const auto signless = hn::Set(du, MagnitudeKey<float>::kSignless);
  // Zeros become the largest number.
  auto smallest = hn::Set(du, ~std::uint32_t{0});
  for (std::size_t i = 0; i < Count; i += hn::Lanes(di)) {
    const auto bits = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(values) + i);
    smallest = hn::Min(smallest, hn::Sub(hn::And(bits, signless), hn::Set(du, 1)));
  }
  const std::uint32_t least = hn::GetLane(hn::MinOfLanes(du, smallest)) + 1;
  const auto exponent = [](std::uint32_t key) { return std::max(key >> kFraction, 1U); };
  static_assert(Count <= 512);
  return exponent(largest) - exponent(least) <= (Count <= 256 ? 21 : 20);
}

/// Exact sums of the magnitudes up to a limit, and of the magnitudes above it.
struct ExactSums {
  double small = 0;
  double large = 0;
  double larger = 0;  ///< how many are above the limit
};
template <std::size_t Count>
HWY_INLINE ExactSums exact_sums(const float* values, double limit) {
  const Doubles dd;
  const FewFloats few;
  const auto above = hn::Set(dd, limit);
  const auto one = hn::Set(dd, 1.0);
  auto small = hn::Zero(dd);
  auto large = hn::Zero(dd);
  auto larger = hn::Zero(dd);
  for (std::size_t i = 0; i < Count; i += hn::Lanes(dd)) {
    const auto magnitude = hn::Abs(hn::PromoteTo(dd, hn::LoadU(few, values + i)));
    const auto is_larger = hn::Gt(magnitude, above);
    small = hn::Add(small, hn::IfThenZeroElse(is_larger, magnitude));
    large = hn::Add(large, hn::IfThenElseZero(is_larger, magnitude));
    larger = hn::Add(larger, hn::IfThenElseZero(is_larger, one));
  }
  return {.small = hn::GetLane(hn::SumOfLanes(dd, small)),
          .large = hn::GetLane(hn::SumOfLanes(dd, large)),
          .larger = hn::GetLane(hn::SumOfLanes(dd, larger))};
}

/// Returns a bit for each of eight values that says whether it is less than a limit.
HWY_INLINE unsigned bits_below(const float* values, float limit) {
  const Floats df;
  unsigned bits = 0;
  for (std::size_t i = 0; i < 8; i += hn::Lanes(df)) {
    std::array<std::uint8_t, 8> some{};
    hn::StoreMaskBits(df, hn::Lt(hn::LoadU(df, values + i), hn::Set(df, limit)), some.data());
    bits |= static_cast<unsigned>(some[0]) << i;
  }
  return bits;
}

/// Returns a bit for each of eight magnitudes that says whether it is above a limit.
HWY_INLINE unsigned bits_above(const float* values, float limit) {
  const Floats df;
  unsigned bits = 0;
  for (std::size_t i = 0; i < 8; i += hn::Lanes(df)) {
    std::array<std::uint8_t, 8> some{};
    const auto magnitudes = hn::Abs(hn::LoadU(df, values + i));
    hn::StoreMaskBits(df, hn::Gt(magnitudes, hn::Set(df, limit)), some.data());
    bits |= static_cast<unsigned>(some[0]) << i;
  }
  return bits;
}

/// Puts a zero after each of eight bits.
constexpr std::array<std::uint16_t, 256> spread_bits() {
  std::array<std::uint16_t, 256> spread{};
  for (unsigned bits = 0; bits < spread.size(); ++bits) {
    for (unsigned i = 0; i < 8; ++i) {
      spread[bits] |= static_cast<std::uint16_t>((bits >> i & 1U) << 2 * i);
    }
  }
  return spread;
}
constexpr std::array<std::uint16_t, 256> kSpread = spread_bits();

/// The levels of a block whose sums are exact. They are the same as in LevelRules::Block.
template <std::size_t Levels>
struct LevelsOfBlock {
  std::array<float, Levels> scales;
  /// Magnitudes above this limit have the larger level.
  float limit = std::numeric_limits<float>::infinity();
};
template <std::size_t Levels, std::size_t Count = LevelRules<Levels>::kBlock>
HWY_INLINE LevelsOfBlock<Levels> levels_of(const float* values, float largest) {
  using Rules = LevelRules<Levels>;
  constexpr auto kCount = static_cast<double>(Count);
  const double mean =
      exact_sums<Count>(values, std::numeric_limits<double>::infinity()).small / kCount;
  LevelsOfBlock<Levels> levels;
  levels.scales.fill(Rules::template level_of<float>(mean));
  if (Levels == 2 && mean < largest) {
    const ExactSums sums = exact_sums<Count>(values, mean);
    levels.scales.front() =
        Rules::template level_of<float>(std::clamp(sums.small / (kCount - sums.larger), 0.0, mean));
    levels.scales.back() = Rules::template level_of<float>(
        std::clamp(sums.large / sums.larger, mean, double{largest}));
    levels.limit = Rules::template limit_of<float>(mean);
  }
  return levels;
}

template <std::size_t Levels>
HWY_INLINE void encode_levels(const float* values, std::size_t blocks, std::byte* out) {
  using Format = LevelBlocks<Levels>;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::uint32_t key = largest_key_of(values, Format::kBlock);
    if (key != 0 && is_finite_key<float>(key) && sums_are_exact<Format::kBlock>(values, key)) {
      const auto levels = levels_of<Levels>(values, std::bit_cast<float>(key));
      std::memcpy(out, levels.scales.data(), sizeof levels.scales);
      std::byte* codes = out + sizeof levels.scales;
      const bool differ = levels.scales.front() < levels.scales.back();
      for (std::size_t i = 0; i < Format::kBlock; i += 8) {
        const unsigned larger = differ ? bits_above(values + i, levels.limit) : 0;
        unsigned negative = bits_below(values + i, 0);
        negative &= levels.scales.front() > 0 ? 255U : larger;
        if (Levels == 1) {
          codes[i / 8] = static_cast<std::byte>(negative);
        } else {
          const auto both = static_cast<std::uint16_t>(kSpread[negative] | kSpread[larger] << 1U);
          std::memcpy(codes + i / 4, &both, sizeof both);
        }
      }
    } else {
      Format::encode(values, Format::kBlock, out);
    }
    values += Format::kBlock;
    out += Format::template bytes<float>(Format::kBlock);
  }
}

constexpr std::size_t kTernaryBytes = TernaryBlocks::code_bytes(TernaryBlocks::kBlock);

/// Does the same as TernaryBlocks::write().
HWY_INLINE void write_ternary(const float* values, float level, float limit, std::byte* out) {
  const auto stored = FourBits<float>::stored_of(level);
  std::memcpy(out, &stored, sizeof stored);
  out += sizeof stored;
  const Floats df;
  const Int32s di;
  const hn::RebindToUnsigned<FewInt8s> few;
  const auto above = hn::Set(df, stored == 0 ? std::numeric_limits<float>::infinity() : limit);
  const auto below = hn::Neg(above);
  for (std::size_t i = 0; i < kTernaryBytes; i += hn::Lanes(di)) {
    auto codes = hn::Zero(di);
    for (std::size_t digit = 0; digit < TernaryBlocks::kPerByte; ++digit) {
      const auto value = hn::LoadU(df, values + digit * kTernaryBytes + i);
      const auto power = static_cast<std::int32_t>(TernaryBlocks::kPowers[digit]);
      const auto one =
          hn::IfThenElseZero(hn::RebindMask(di, hn::Gt(value, above)), hn::Set(di, power));
      const auto two =
          hn::IfThenElseZero(hn::RebindMask(di, hn::Lt(value, below)), hn::Set(di, 2 * power));
      codes = hn::Add(codes, hn::Or(one, two));
    }
    const auto bytes = hn::TruncateTo(few, hn::BitCast(hn::RebindToUnsigned<Int32s>(), codes));
    hn::StoreU(bytes, few, reinterpret_cast<std::uint8_t*>(out) + i);
  }
}

/// Does the same as TernaryBlocks::decode(). A digit d stands for the level times d - 3 (d / 2).
void decode_ternary(const std::byte* in, std::size_t blocks, float* values) {
  const Floats df;
  const Int32s di;
  const hn::RebindToUnsigned<FewInt8s> few;
  const auto three = hn::Set(di, 3);
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto level = hn::Set(df, FourBits<float>::read(in));
    in += sizeof(FourBits<float>::Stored);
    for (std::size_t i = 0; i < kTernaryBytes; i += hn::Lanes(di)) {
      auto rest = hn::PromoteTo(di, hn::LoadU(few, reinterpret_cast<const std::uint8_t*>(in) + i));
      for (std::size_t digit = 0; digit < TernaryBlocks::kPerByte; ++digit) {
        // For numbers below 256, this is a third rounded down.
        const auto third = hn::ShiftRight<9>(hn::Mul(rest, hn::Set(di, 171)));
        const auto code = hn::Sub(rest, hn::Mul(third, three));
        const auto times = hn::Sub(code, hn::Mul(hn::ShiftRight<1>(code), three));
        hn::StoreU(hn::Mul(hn::ConvertTo(df, times), level), df,
                   values + digit * kTernaryBytes + i);
        rest = third;
      }
    }
    in += kTernaryBytes;
    values += TernaryBlocks::kBlock;
  }
}

void encode_ternary(const float* values, std::size_t blocks, std::byte* out) {
  using Format = TernaryBlocks;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::uint32_t key = largest_key_of(values, Format::kBlock);
    if (key != 0 && is_finite_key<float>(key) && sums_are_exact<Format::kBlock>(values, key)) {
      const auto levels = levels_of<2, Format::kBlock>(values, std::bit_cast<float>(key));
      const bool all_are_mean = std::isinf(levels.limit);
      write_ternary(values, levels.scales.back(), all_are_mean ? 0.0F : levels.limit, out);
    } else {
      Format::encode(values, Format::kBlock, out);
    }
    values += Format::kBlock;
    out += Format::bytes<float>(Format::kBlock);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void encode_two_bits(const float* values, std::size_t blocks, std::byte* out) {
  encode_levels<2>(values, blocks, out);
}
void encode_signs(const float* values, std::size_t blocks, std::byte* out) {
  encode_levels<1>(values, blocks, out);
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::sparse {

HWY_EXPORT(encode_two_bits);
HWY_EXPORT(encode_ternary);
HWY_EXPORT(decode_ternary);
HWY_EXPORT(encode_signs);

void encode_two_bit_blocks(const float* values, std::size_t blocks, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(encode_two_bits)(values, blocks, out);
}
void encode_ternary_blocks(const float* values, std::size_t blocks, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(encode_ternary)(values, blocks, out);
}
void decode_ternary_blocks(const std::byte* in, std::size_t blocks, float* values) {
  HWY_DYNAMIC_DISPATCH(decode_ternary)(in, blocks, values);
}
void encode_sign_blocks(const float* values, std::size_t blocks, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(encode_signs)(values, blocks, out);
}

}  // namespace gtopk::sparse
#endif  // HWY_ONCE
