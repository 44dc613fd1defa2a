// Sparse, wire: codes one block of a dense vector in each of the formats, value by value. The SIMD
// loops give the same results, and leave to this code the blocks that they do not handle. It does
// not know vectors of blocks.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "src/gtopk/value/selection_order.hpp"
#include "src/gtopk/wire/four_bits.hpp"
#include "src/gtopk/wire/level_rules.hpp"
#include "src/gtopk/wire/value_rules.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// The key of the largest magnitude, or of a NaN or infinity if there is one.
template <class Value>
[[nodiscard]] Key<Value> largest_key(const Value* values, std::size_t count) {
  Key<Value> largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, magnitude_key(values[i]));
  }
  return largest;
}

template <class Half>
struct HalfBlocks {
  static constexpr std::size_t kBlock = 256;

  template <class Value>
  static constexpr std::size_t bytes(std::size_t count) {
    return count * sizeof(Half);
  }
  template <class Value>
  static void encode(const Value* values, std::size_t count, std::byte* out) {
    bool finite = is_finite_key<Value>(largest_key(values, count));
    for (std::size_t i = 0; i < count; ++i) {
      Half half = to_half<Half>(values[i]);
      finite = finite && is_finite_key<float>(magnitude_key(widen(half)));
      half = widen(half) == 0 ? Half{} : half;
      std::memcpy(out + i * sizeof half, &half, sizeof half);
    }
    if (!finite) {
      const Half nan = narrow<Half>(std::numeric_limits<float>::quiet_NaN());
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(out + i * sizeof nan, &nan, sizeof nan);
      }
    }
  }
  template <class Value>
  static void decode(const std::byte* in, std::size_t count, Value* values) {
    for (std::size_t i = 0; i < count; ++i) {
      Half half{};
      std::memcpy(&half, in + i * sizeof half, sizeof half);
      values[i] = static_cast<Value>(widen(half));
    }
  }
};

/// A block consists of its exponent, in 16 bits, and a byte for each value.
struct Int8Blocks {
  static constexpr std::size_t kBlock = kInt8Block;
  using Exponent = std::int16_t;
  /// The exponent of a block in which a value is not finite.
  static constexpr Exponent kNotFinite = std::numeric_limits<Exponent>::max();

  template <class Value>
  static constexpr std::size_t bytes(std::size_t count) {
    return sizeof(Exponent) + count;
  }
  /// The exponent for the key of the largest magnitude, which may overflow when it is rounded.
  template <class Value>
  static Exponent exponent_of(Key<Value> largest) {
    if (largest == 0) {
      return 0;
    }
    if (!is_finite_key<Value>(largest)) {
      return kNotFinite;
    }
    const int e = int8_exponent<Value>(largest);
    const Int8Scale<Value> scale(e);
    const Value rounded = scale.times(scale.quotient(std::bit_cast<Value>(largest)));
    return is_finite_key<Value>(magnitude_key(rounded)) ? static_cast<Exponent>(e) : kNotFinite;
  }
  template <class Value>
  static void encode(const Value* values, std::size_t count, std::byte* out) {
    const Exponent e = exponent_of<Value>(largest_key(values, count));
    std::memcpy(out, &e, sizeof e);
    if (e == kNotFinite) {
      std::fill_n(out + sizeof e, count, std::byte{0});
      return;
    }
    const Int8Scale<Value> scale(e);
    for (std::size_t i = 0; i < count; ++i) {
      out[sizeof e + i] =
          static_cast<std::byte>(static_cast<std::int8_t>(scale.quotient(values[i])));
    }
  }
  template <class Value>
  static void decode(const std::byte* in, std::size_t count, Value* values) {
    Exponent e = 0;
    std::memcpy(&e, in, sizeof e);
    if (e == kNotFinite) {
      std::fill_n(values, count, std::numeric_limits<Value>::quiet_NaN());
      return;
    }
    const Int8Scale<Value> scale(e);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = scale.times(std::to_integer<std::int8_t>(in[sizeof e + i]));
    }
  }
};

struct FourBitBlocks {
  static constexpr std::size_t kBlock = As4Bit::kBlock;

  template <class Value>
  static constexpr std::size_t bytes(std::size_t count) {
    return As4Bit::block_bytes<Value>(count);
  }
  template <class Value>
  static void encode(const Value* values, std::size_t count, std::byte* out) {
    if (!is_finite_key<Value>(largest_key(values, count))) {
      std::fill_n(out, bytes<Value>(count), std::byte{0});
      const auto nan = FourBits<Value>::stored_of(std::numeric_limits<Value>::quiet_NaN());
      std::memcpy(out, &nan, sizeof nan);
      return;
    }
    Value greatest = 0;
    Value least = 0;
    for (std::size_t i = 0; i < count; ++i) {
      greatest = std::max(greatest, values[i]);
      least = std::min(least, values[i]);
    }
    As4Bit::write_block(FourBits<Value>::unit_of(greatest, least), values, count, out);
  }
  template <class Value>
  static void decode(const std::byte* in, std::size_t count, Value* values) {
    static_cast<void>(As4Bit::read_block(in, count, values));
  }
};

/// A block consists of its levels and the codes of `sign` or `2bit`. A value keeps its sign only if
/// its level is not zero, and has the larger level only if the two differ.
template <std::size_t Levels>
struct LevelBlocks {
  using Rules = LevelRules<Levels>;
  static constexpr std::size_t kBlock = Rules::kBlock;

  template <class Value>
  static constexpr std::size_t bytes(std::size_t count) {
    return Levels * sizeof(Value) + (count + Rules::kPerByte - 1) / Rules::kPerByte;
  }
  template <class Value>
  static void encode(const Value* values, std::size_t count, std::byte* out) {
    typename Rules::template Scales<Value> scales;
    std::fill_n(out, bytes<Value>(count), std::byte{0});
    if (!is_finite_key<Value>(largest_key(values, count))) {
      scales.fill(std::numeric_limits<Value>::quiet_NaN());
      std::memcpy(out, scales.data(), sizeof scales);
      return;
    }
    const typename Rules::template Block<Value> block(values, count);
    scales.front() = block.smaller();
    scales.back() = block.larger();
    std::memcpy(out, scales.data(), sizeof scales);
    out += sizeof scales;
    for (std::size_t i = 0; i < count; ++i) {
      const Value level = block.level(std::fabs(values[i]));
      const unsigned larger = level > scales.front() ? 2 : 0;
      const unsigned negative = values[i] < 0 && level > 0 ? 1 : 0;
      out[i / Rules::kPerByte] |=
          static_cast<std::byte>((larger | negative) << i % Rules::kPerByte * Rules::kBits);
    }
  }
  template <class Value>
  static void decode(const std::byte* in, std::size_t count, Value* values) {
    typename Rules::template Scales<Value> scales;
    std::memcpy(scales.data(), in, sizeof scales);
    in += sizeof scales;
    const Value meant[] = {scales.front(), -scales.front(), scales.back(), -scales.back()};
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned rest =
          std::to_integer<unsigned>(in[i / Rules::kPerByte]) >> i % Rules::kPerByte * Rules::kBits;
      values[i] = meant[rest % (1U << Rules::kBits)];
    }
  }
};

/// A block consists of its level, as the upper half of the level's bits, and five values in each
/// byte, as digits in base 3: 0, the level, or its negative. Of n values, value i is digit i / s of
/// byte i % s, with s = ceil(n / 5), so that loops over bytes need no shuffles. A magnitude above
/// the block's mean is sent as the mean of all magnitudes above it. If none is above the mean, all
/// equal it, and all are sent.
struct TernaryBlocks {
  static constexpr std::size_t kBlock = 320;
  static constexpr std::size_t kPerByte = 5;
  static constexpr std::array<unsigned, kPerByte> kPowers = {1, 3, 9, 27, 81};
  using Rules = LevelRules<2>;

  static constexpr std::size_t code_bytes(std::size_t count) {
    return (count + kPerByte - 1) / kPerByte;
  }
  template <class Value>
  static constexpr std::size_t bytes(std::size_t count) {
    return sizeof(typename FourBits<Value>::Stored) + code_bytes(count);
  }
  template <class Value>
  static void encode(const Value* values, std::size_t count, std::byte* out) {
    if (!is_finite_key<Value>(largest_key(values, count))) {
      const Value infinity = std::numeric_limits<Value>::infinity();
      write(values, count, std::numeric_limits<Value>::quiet_NaN(), infinity, out);
      return;
    }
    const typename Rules::template Block<Value> block(values, count);
    const bool all_are_mean = block.mean() >= Rules::range_of(values, count).second;
    write(values, count, block.larger(), all_are_mean ? Value{0} : block.limit(), out);
  }
  template <class Value>
  static void decode(const std::byte* in, std::size_t count, Value* values) {
    const Value level = FourBits<Value>::read(in);
    in += sizeof(typename FourBits<Value>::Stored);
    const Value zero = std::isnan(level) ? level : Value{0};
    const std::size_t stride = code_bytes(count);
    for (std::size_t digit = 0, begin = 0; begin < count; ++digit, begin += stride) {
      const std::size_t some = std::min(stride, count - begin);
      for (std::size_t i = 0; i < some; ++i) {
        const unsigned code = std::to_integer<unsigned>(in[i]) / kPowers[digit] % 3;
        values[begin + i] = code == 0 ? zero : code == 1 ? level : -level;
      }
    }
  }

  /// Writes a block whose magnitudes above the limit are sent as the level.
  template <class Value>
  static void write(const Value* values, std::size_t count, Value level, Value limit,
                    std::byte* out) {
    const auto stored = FourBits<Value>::stored_of(level);
    std::memcpy(out, &stored, sizeof stored);
    out += sizeof stored;
    if (stored == 0) {
      limit = std::numeric_limits<Value>::infinity();  // so that no value is sent as a signed zero
    }
    const std::size_t stride = code_bytes(count);
    std::array<std::uint8_t, code_bytes(kBlock)> codes{};
    for (std::size_t digit = 0, begin = 0; begin < count; ++digit, begin += stride) {
      const std::size_t some = std::min(stride, count - begin);
      for (std::size_t i = 0; i < some; ++i) {
        const unsigned above = values[begin + i] > limit ? 1 : 0;
        const unsigned below = values[begin + i] < -limit ? 2 : 0;
        codes[i] = static_cast<std::uint8_t>(codes[i] + kPowers[digit] * (above + below));
      }
    }
    std::memcpy(out, codes.data(), stride);
  }
};

}  // namespace gtopk::sparse
