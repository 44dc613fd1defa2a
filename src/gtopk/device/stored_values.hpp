// Sparse, device room: the values of a message, in the format of its wire (wire/coded.cpp), by
// blocks of 256 entries: one for each thread of a block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/device_lists.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/wire/level_rules.hpp"
#include "src/gtopk/wire/value_rules.hpp"

namespace gtopk::sparse::device {

static_assert(kThreads == kInt8Block && kThreads == rice::kBlock &&
              kThreads == LevelRules<1>::kBlock);

[[nodiscard]] GTOPK_HOST_DEVICE constexpr bool rounds(ListFormat format) {
  return format != ListFormat::kRaw && format != ListFormat::kLossless;
}

/// Bytes of the values of so many entries.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t value_bytes(ListFormat format,
                                                                 std::uint64_t count) {
  switch (format) {
    case ListFormat::kBf16:
    case ListFormat::kFp16:
      return count * 2;
    case ListFormat::kInt8:
      return rice::blocks_of(count) * sizeof(std::int16_t) + count;
    case ListFormat::k2Bit:
      return LevelRules<2>::bytes<Value>(count);
    case ListFormat::kSign:
      return LevelRules<1>::bytes<Value>(count);
    case ListFormat::kRaw:
    case ListFormat::kLossless:
      break;
  }
  return count * sizeof(Value);
}

/// Whether a value becomes one of the levels of its block.
[[nodiscard]] GTOPK_HOST_DEVICE constexpr bool has_levels(ListFormat format) {
  return format == ListFormat::k2Bit || format == ListFormat::kSign;
}

/// What a format without levels makes of a value; `exponent`: its block's, of `int8`.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE inline Value rounded(ListFormat format, Value value, int exponent) {
  switch (format) {
    case ListFormat::kBf16:
      return widen(to_half<Bfloat16>(value));
    case ListFormat::kFp16:
      return widen(to_half<Float16>(value));
    case ListFormat::kInt8: {
      const Int8Scale<Value> scale(exponent);
      return scale.times(scale.quotient(value));
    }
    case ListFormat::kRaw:
    case ListFormat::kLossless:
    case ListFormat::k2Bit:
    case ListFormat::kSign:
      break;
  }
  return value;
}

/// The largest of what the threads have, for all of them. In shared memory.
template <class Block, class Number>
GTOPK_HOST_DEVICE Number largest_of(Block& block, Number* numbers) {
  for (unsigned reach = kThreads / 2; reach > 0; reach /= 2) {
    block.each([=](unsigned thread) {
      if (thread < reach && numbers[thread] < numbers[thread + reach]) {
        numbers[thread] = numbers[thread + reach];
      }
    });
  }
  return block.read(numbers[0]);
}

/// The values of a message of `count` entries, at its beginning.
template <class Value>
struct StoredValues {
  struct Shared {
    std::uint64_t keys[kThreads];
  };

  ListFormat format = ListFormat::kLossless;
  std::byte* bytes = nullptr;
  std::uint64_t count = 0;

  /// Writes the block of entries from `begin` on, which are rounded.
  template <class Block>
  GTOPK_HOST_DEVICE void write(Block& block, Shared& shared, const Value* values,
                               std::uint64_t begin) const {
    const ListFormat as = format;
    std::byte* const to = bytes;
    const std::uint64_t all = count;
    const auto size = static_cast<unsigned>(least<std::uint64_t>(kThreads, all - begin));
    const Value* const from = values + begin;
    if (has_levels(as)) {
      as == ListFormat::kSign ? write_levels<1>(block, from, begin, size)
                              : write_levels<2>(block, from, begin, size);
      return;
    }
    if (as != ListFormat::kInt8) {
      block.each([=](unsigned thread) {
        if (thread < size) {
          put(as, to, begin + thread, from[thread]);
        }
      });
      return;
    }
    block.each([&shared, from, size](unsigned thread) {
      shared.keys[thread] = thread < size ? magnitude_key(from[thread]) : 0;
    });
    const int e = int8_exponent<Value>(static_cast<Key<Value>>(largest_of(block, shared.keys)));
    block.each([=](unsigned thread) {
      if (thread == 0) {
        reinterpret_cast<std::int16_t*>(to)[begin / kInt8Block] = static_cast<std::int16_t>(e);
      }
      if (thread < size) {
        const auto quotient = static_cast<std::int8_t>(Int8Scale<Value>(e).quotient(from[thread]));
        quotients(to, all)[begin + thread] = quotient;
      }
    });
  }

  /// Entry i. False if no message has it. A block is valid if, besides, one of its entries
  /// is_large() and one is_small().
  [[nodiscard]] GTOPK_HOST_DEVICE bool read(std::uint64_t i, Value& value) const {
    switch (format) {
      case ListFormat::kBf16:
        value = widen(reinterpret_cast<const Bfloat16*>(bytes)[i]);
        return true;
      case ListFormat::kFp16:
        value = widen(reinterpret_cast<const Float16*>(bytes)[i]);
        return true;
      case ListFormat::kInt8: {
        const Int8Scale<Value> scale(reinterpret_cast<const std::int16_t*>(bytes)[i / kInt8Block]);
        const double q = quotient(i);
        value = scale.times(q);
        return q != 0 && q >= -kInt8Most && scale.quotient(value) == q;
      }
      case ListFormat::k2Bit:
        return read_level<2>(i, value);
      case ListFormat::kSign:
        return read_level<1>(i, value);
      case ListFormat::kRaw:
      case ListFormat::kLossless:
        break;
    }
    value = reinterpret_cast<const Value*>(bytes)[i];
    return true;
  }
  [[nodiscard]] GTOPK_HOST_DEVICE bool is_large(std::uint64_t i) const {
    if (format == ListFormat::k2Bit) {
      return scale<2>(i, 0) == scale<2>(i, 1) || code<2>(i) >= 2;
    }
    if (format != ListFormat::kInt8) {
      return true;
    }
    return quotient(i) > kInt8Most / 2.0 || quotient(i) < -kInt8Most / 2.0;
  }

  [[nodiscard]] GTOPK_HOST_DEVICE bool is_small(std::uint64_t i) const {
    return format != ListFormat::k2Bit || scale<2>(i, 0) == scale<2>(i, 1) || code<2>(i) < 2;
  }

 private:
  template <std::size_t Levels, class Block>
  GTOPK_HOST_DEVICE void write_levels(Block& block, const Value* from, std::uint64_t begin,
                                      unsigned size) const {
    using Rules = LevelRules<Levels>;
    auto* const scales = reinterpret_cast<Value*>(bytes) + begin / Rules::kBlock * Levels;
    std::byte* const codes =
        bytes + Rules::template scales_bytes<Value>(count) + begin / Rules::kPerByte;
    block.each([=](unsigned thread) {
      if (thread == 0) {
        const auto range = Rules::range_of(from, size);
        scales[0] = range.first;
        scales[Levels - 1] = Levels == 1 ? range.first : range.second;
      }
    });
    block.each([=](unsigned thread) {
      constexpr auto kPerByte = static_cast<unsigned>(Rules::kPerByte);
      const unsigned first = thread * kPerByte;
      if (first < size) {
        codes[thread] = Rules::packed(from + first, least(kPerByte, size - first), scales[0]);
      }
    });
  }

  /// Of entry i's block.
  template <std::size_t Levels>
  [[nodiscard]] GTOPK_HOST_DEVICE Value scale(std::uint64_t i, std::size_t level) const {
    const std::uint64_t block = i / LevelRules<Levels>::kBlock;
    return reinterpret_cast<const Value*>(bytes)[block * Levels + level];
  }
  /// The codes from entry i's on that share its byte.
  template <std::size_t Levels>
  [[nodiscard]] GTOPK_HOST_DEVICE unsigned codes_from(std::uint64_t i) const {
    using Rules = LevelRules<Levels>;
    const std::byte* const codes = bytes + Rules::template scales_bytes<Value>(count);
    const auto byte = static_cast<unsigned>(codes[i / Rules::kPerByte]);
    return byte >> (i % Rules::kPerByte * Rules::kBits);
  }
  template <std::size_t Levels>
  [[nodiscard]] GTOPK_HOST_DEVICE unsigned code(std::uint64_t i) const {
    return codes_from<Levels>(i) % (1U << LevelRules<Levels>::kBits);
  }
  template <std::size_t Levels>
  [[nodiscard]] GTOPK_HOST_DEVICE bool read_level(std::uint64_t i, Value& value) const {
    const Value smaller = scale<Levels>(i, 0);
    const Value larger = scale<Levels>(i, Levels - 1);
    const unsigned here = code<Levels>(i);
    const Value magnitude = here >= 2 ? larger : smaller;
    value = here % 2 == 0 ? magnitude : -magnitude;
    // Nothing behind the last value.
    const bool ends = i + 1 < count || codes_from<Levels>(i) < 1U << LevelRules<Levels>::kBits;
    return ends && smaller <= larger && (here < 2 || smaller < larger) &&
           LevelRules<Levels>::is_scale(smaller) && LevelRules<Levels>::is_scale(larger);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE double quotient(std::uint64_t i) const {
    return quotients(bytes, count)[i];
  }
  static GTOPK_HOST_DEVICE void put(ListFormat format, std::byte* to, std::uint64_t i,
                                    Value value) {
    if (format == ListFormat::kBf16) {
      reinterpret_cast<Bfloat16*>(to)[i] = to_half<Bfloat16>(value);
    } else if (format == ListFormat::kFp16) {
      reinterpret_cast<Float16*>(to)[i] = to_half<Float16>(value);
    } else {
      reinterpret_cast<Value*>(to)[i] = value;
    }
  }
  [[nodiscard]] static GTOPK_HOST_DEVICE std::int8_t* quotients(std::byte* bytes,
                                                                std::uint64_t count) {
    return reinterpret_cast<std::int8_t*>(bytes + rice::blocks_of(count) * sizeof(std::int16_t));
  }
};

}  // namespace gtopk::sparse::device
