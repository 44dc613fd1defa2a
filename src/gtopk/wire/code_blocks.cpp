// Sparse, wire: the SIMD loops over blocks, compiled once per target. Each value is rounded
// once, by the same operations as in block_formats.hpp, so every target gives the same bytes.
#include "src/gtopk/wire/code_blocks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/gtopk/wire/code_blocks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/gtopk/wire/block_formats.hpp"
#include "src/gtopk/wire/block_lanes-inl.h"
#include "src/numbers/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

template <class Format>
void encode(const float* values, std::size_t blocks, std::byte* out) {
  for (std::size_t block = 0; block < blocks; ++block) {
    Format::encode(values + block * Format::kBlock, Format::kBlock,
                   out + block * Format::template bytes<float>(Format::kBlock));
  }
}
template <class Format>
void decode(const std::byte* in, std::size_t blocks, float* values) {
  for (std::size_t block = 0; block < blocks; ++block) {
    Format::decode(in + block * Format::template bytes<float>(Format::kBlock), Format::kBlock,
                   values + block * Format::kBlock);
  }
}
void encode_int8(const float* values, std::size_t blocks, std::byte* out) {
  encode<Int8Blocks>(values, blocks, out);
}
void decode_int8(const std::byte* in, std::size_t blocks, float* values) {
  decode<Int8Blocks>(in, blocks, values);
}
void encode_four_bits(const float* values, std::size_t blocks, std::byte* out) {
  encode<FourBitBlocks>(values, blocks, out);
}
void decode_four_bits(const std::byte* in, std::size_t blocks, float* values) {
  decode<FourBitBlocks>(in, blocks, values);
}
template <class Half>
void encode_halves(const float* values, std::size_t blocks, std::byte* out) {
  encode<HalfBlocks<Half>>(values, blocks, out);
}

#else

/// Multiplies values by a factor, and rounds to the nearest integers, ties to even. The result
/// saturates.
HWY_INLINE void quantize(const float* values, std::size_t count, float factor, std::int8_t* out) {
  const Floats df;
  const FewInt8s few;
  const auto by = hn::Set(df, factor);
  for (std::size_t i = 0; i < count; i += hn::Lanes(df)) {
    const auto whole = hn::NearestInt(hn::Mul(hn::LoadU(df, values + i), by));
    hn::StoreU(hn::DemoteTo(few, whole), few, out + i);
  }
}

/// Multiplies integers by a factor. No product is -0.
HWY_INLINE void scale(const std::int8_t* whole, std::size_t count, float factor, float* values) {
  const Floats df;
  const Int32s di;
  const FewInt8s few;
  const auto by = hn::Set(df, factor);
  for (std::size_t i = 0; i < count; i += hn::Lanes(df)) {
    const auto number = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(few, whole + i)));
    hn::StoreU(hn::Add(hn::Mul(number, by), hn::Zero(df)), df, values + i);
  }
}

template <class Half>
HWY_INLINE void encode_halves(const float* values, std::size_t blocks, std::byte* out) {
  using Format = HalfBlocks<Half>;
  constexpr std::size_t kBlock = Format::kBlock;
  // These are the bits of an infinity; saturated values of float16 stay below them.
  constexpr std::uint16_t kInfinity = std::is_same_v<Half, Bfloat16> ? 0x7F80 : 0x7C00;
  const Floats df;
  const hn::RebindToUnsigned<Int16s> du;
  const auto signless = hn::Set(du, std::uint16_t{0x7FFF});
  alignas(64) std::array<Half, kBlock> halves;
  for (std::size_t block = 0; block < blocks; ++block) {
    bool finite = is_finite_key<float>(largest_key_of(values, kBlock));
    for (std::size_t i = 0; finite && i < kBlock; i += hn::Lanes(df)) {
      auto some = hn::LoadU(df, values + i);
      if constexpr (std::is_same_v<Half, Float16>) {
        some = hn::Min(hn::Max(some, hn::Set(df, -65504.0F)), hn::Set(df, 65504.0F));
      }
      gtopk::HWY_NAMESPACE::store_narrow(df, some, halves.data() + i);
    }
    auto largest = hn::Zero(du);
    auto* const bits = reinterpret_cast<std::uint16_t*>(halves.data());
    for (std::size_t i = 0; finite && i < kBlock; i += hn::Lanes(du)) {
      const auto some = hn::Load(du, bits + i);
      const auto magnitude = hn::And(some, signless);
      largest = hn::Max(largest, magnitude);
      // -0 becomes +0.
      hn::Store(hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(du)), some), du, bits + i);
    }
    finite = finite && hn::AllTrue(du, hn::Lt(largest, hn::Set(du, kInfinity)));
    if (finite) {
      std::memcpy(out, halves.data(), sizeof halves);
    } else {
      Format::encode(values, kBlock, out);
    }
    values += kBlock;
    out += Format::template bytes<float>(kBlock);
  }
}

/// Whether 2^e and 2^-e are normal numbers.
HWY_INLINE bool is_usual(Int8Blocks::Exponent e) { return e >= -126 && e <= 126; }

void encode_int8(const float* values, std::size_t blocks, std::byte* out) {
  constexpr std::size_t kBlock = Int8Blocks::kBlock;
  for (std::size_t block = 0; block < blocks; ++block) {
    const Int8Blocks::Exponent e = Int8Blocks::exponent_of<float>(largest_key_of(values, kBlock));
    if (is_usual(e)) {
      std::memcpy(out, &e, sizeof e);
      quantize(values, kBlock, static_cast<float>(power_of_two(-e)),
               reinterpret_cast<std::int8_t*>(out + sizeof e));
    } else {
      Int8Blocks::encode(values, kBlock, out);
    }
    values += kBlock;
    out += Int8Blocks::bytes<float>(kBlock);
  }
}

void decode_int8(const std::byte* in, std::size_t blocks, float* values) {
  constexpr std::size_t kBlock = Int8Blocks::kBlock;
  for (std::size_t block = 0; block < blocks; ++block) {
    Int8Blocks::Exponent e = 0;
    std::memcpy(&e, in, sizeof e);
    if (is_usual(e)) {
      scale(reinterpret_cast<const std::int8_t*>(in + sizeof e), kBlock,
            static_cast<float>(power_of_two(e)), values);
    } else {
      Int8Blocks::decode(in, kBlock, values);
    }
    values += kBlock;
    in += Int8Blocks::bytes<float>(kBlock);
  }
}

/// Returns, for each of the upper 15 levels, the most units that do not reach it.
constexpr std::array<std::int8_t, 15> last_below() {
  std::array<std::int8_t, 15> last{};
  for (unsigned code = 1; code < 16; ++code) {
    int units = four_bit_level(code - 1);
    while (!reaches_level(units + 1, code)) {
      ++units;
    }
    last[code - 1] = static_cast<std::int8_t>(units);
  }
  return last;
}
constexpr std::array<std::int8_t, 15> kLastBelow = last_below();

/// Returns the codes of the levels nearest to integer numbers of units. A code is the number of
/// levels that are reached.
HWY_INLINE hn::Vec<Int8s> codes_of(hn::Vec<Int8s> units) {
  const Int8s d8;
  auto codes = hn::Zero(d8);
  for (const std::int8_t last : kLastBelow) {
    codes = hn::Sub(codes, hn::VecFromMask(d8, hn::Gt(units, hn::Set(d8, last))));
  }
  return codes;
}

/// Returns the unit of a block, or NaN if any value is not finite.
HWY_INLINE float unit_of(const float* values) {
  const Floats df;
  const Int32s di;
  const auto signless = hn::Set(di, static_cast<std::int32_t>(MagnitudeKey<float>::kSignless));
  auto largest = hn::Zero(di);
  auto greatest = hn::Zero(df);
  for (std::size_t i = 0; i < FourBitBlocks::kBlock; i += hn::Lanes(df)) {
    const auto some = hn::LoadU(df, values + i);
    largest = hn::Max(largest, hn::And(hn::BitCast(di, some), signless));
    greatest = hn::Max(greatest, some);
  }
  const auto key = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  if (!is_finite_key<float>(key)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return FourBits<float>::unit_of(hn::GetLane(hn::MaxOfLanes(df, greatest)),
                                  -std::bit_cast<float>(key));
}

HWY_INLINE void encode_block(float unit, const float* values, std::byte* out) {
  constexpr std::size_t kHalf = FourBitBlocks::kBlock / 2;
  const Int8s d8;
  const Bytes du;
  const FourBits<float> levels(unit);
  const auto stored = levels.stored();
  std::memcpy(out, &stored, sizeof stored);
  alignas(64) std::array<std::int8_t, 2 * kHalf> units;
  quantize(values, units.size(), levels.inverse(), units.data());
  auto* const codes = reinterpret_cast<std::uint8_t*>(out + sizeof stored);
  for (std::size_t i = 0; i < kHalf; i += hn::Lanes(d8)) {
    const auto low = hn::BitCast(du, codes_of(hn::Load(d8, units.data() + i)));
    const auto high = hn::BitCast(du, codes_of(hn::Load(d8, units.data() + kHalf + i)));
    hn::StoreU(hn::Or(low, hn::ShiftLeft<4>(high)), du, codes + i);
  }
}

void encode_four_bits(const float* values, std::size_t blocks, std::byte* out) {
  constexpr std::size_t kBlock = FourBitBlocks::kBlock;
  // A unit takes a chain of slow operations; the chains of several blocks overlap.
  constexpr std::size_t kGroup = 8;
  std::array<float, kGroup> units{};
  for (std::size_t block = 0; block < blocks; ++block) {
    if (block % kGroup == 0) {
      for (std::size_t i = 0; i < std::min(kGroup, blocks - block); ++i) {
        units[i] = unit_of(values + i * kBlock);
      }
    }
    const float unit = units[block % kGroup];
    if (!std::isnan(unit)) {
      encode_block(unit, values, out);
    } else {
      FourBitBlocks::encode(values, kBlock, out);
    }
    values += kBlock;
    out += FourBitBlocks::bytes<float>(kBlock);
  }
}

void decode_four_bits(const std::byte* in, std::size_t blocks, float* values) {
  constexpr std::size_t kBlock = FourBitBlocks::kBlock;
  constexpr std::size_t kHalf = kBlock / 2;
  const Int8s d8;
  const Bytes du;
  alignas(16) std::array<std::int8_t, 16> table;
  for (unsigned code = 0; code < table.size(); ++code) {
    table[code] = static_cast<std::int8_t>(four_bit_level(code));
  }
  const auto levels = hn::LoadDup128(d8, table.data());
  alignas(64) std::array<std::int8_t, kBlock> units;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto* const codes =
        reinterpret_cast<const std::uint8_t*>(in + sizeof(FourBits<float>::Stored));
    for (std::size_t i = 0; i < kHalf; i += hn::Lanes(d8)) {
      const auto both = hn::LoadU(du, codes + i);
      const auto low = hn::BitCast(d8, hn::And(both, hn::Set(du, 15)));
      const auto high = hn::BitCast(d8, hn::ShiftRight<4>(both));
      hn::Store(hn::TableLookupBytes(levels, low), d8, units.data() + i);
      hn::Store(hn::TableLookupBytes(levels, high), d8, units.data() + kHalf + i);
    }
    scale(units.data(), kBlock, FourBits<float>::read(in), values);
    values += kBlock;
    in += FourBitBlocks::bytes<float>(kBlock);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void encode_bf16(const float* values, std::size_t blocks, std::byte* out) {
  encode_halves<Bfloat16>(values, blocks, out);
}
void encode_fp16(const float* values, std::size_t blocks, std::byte* out) {
  encode_halves<Float16>(values, blocks, out);
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::sparse {

HWY_EXPORT(encode_bf16);
HWY_EXPORT(encode_fp16);
HWY_EXPORT(encode_int8);
HWY_EXPORT(decode_int8);
HWY_EXPORT(encode_four_bits);
HWY_EXPORT(decode_four_bits);

void encode_bf16_blocks(const float* values, std::size_t blocks, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(encode_bf16)(values, blocks, out);
}
void encode_fp16_blocks(const float* values, std::size_t blocks, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(encode_fp16)(values, blocks, out);
}
void encode_int8_blocks(const float* values, std::size_t blocks, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(encode_int8)(values, blocks, out);
}
void decode_int8_blocks(const std::byte* in, std::size_t blocks, float* values) {
  HWY_DYNAMIC_DISPATCH(decode_int8)(in, blocks, values);
}
void encode_four_bit_blocks(const float* values, std::size_t blocks, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(encode_four_bits)(values, blocks, out);
}
void decode_four_bit_blocks(const std::byte* in, std::size_t blocks, float* values) {
  HWY_DYNAMIC_DISPATCH(decode_four_bits)(in, blocks, values);
}

}  // namespace gtopk::sparse
#endif  // HWY_ONCE
