// Sparse, wire: blocks of dense values: bit for bit the reference's, coding what was decoded
// gives the same bytes, and a block in which anything is not finite is NaN.
#include "src/gtopk/wire/block_coder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "src/gtopk/value/selection_order.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "tests/gtopk/value/simd_targets.hpp"
#include "tests/reference/reference_coded.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

using Bytes = std::vector<std::byte>;
using reference::Random;

template <class Value>
constexpr DataType kType = std::is_same_v<Value, double> ? DataType::kFloat64 : DataType::kFloat32;

template <class Value>
Bytes encoded(const BlockCoder& coder, const std::vector<Value>& values) {
  // Exactly as long, so that a sanitizer sees a byte too many.
  Bytes bytes(coder.bytes(kType<Value>, values.size()), std::byte{0xA5});
  coder.encode(values.data(), values.size(), bytes.data());
  return bytes;
}

template <class Value>
std::vector<Value> decoded(const BlockCoder& coder, const Bytes& bytes, std::size_t count) {
  std::vector<Value> values(count);
  coder.decode(bytes.data(), count, values.data());
  return values;
}

/// Of one of these kinds in each stretch of 1 to 400 elements: bell-shaped, heavy-tailed, zeros of
/// either sign, few non-zeros, equal, subnormal, the largest, a little above the smallest normal.
template <class Value>
std::vector<Value> drawn(Random& random, std::size_t count) {
  constexpr Value kLargest = std::numeric_limits<Value>::max();
  constexpr Value kDenormal = std::numeric_limits<Value>::denorm_min();
  constexpr Value kNormal = std::numeric_limits<Value>::min();
  std::vector<Value> values;
  while (values.size() < count) {
    const std::uint64_t kind = random.below(9);
    const std::size_t end = std::min(count, values.size() + 1 + random.below(400));
    const auto scale =
        static_cast<Value>(std::ldexp(1.0, static_cast<int>(random.below(200)) - 100));
    while (values.size() < end) {
      const auto u = static_cast<Value>(random.uniform());
      Value value = kind == 0   ? u + static_cast<Value>(random.uniform()) - 1
                    : kind == 1 ? Value{1} / (u + Value{1} / 1024)
                    : kind == 2 ? Value{0}
                    : kind == 3 ? (random.one_in(20) ? u : Value{0})
                    : kind == 4 ? Value{1}
                    : kind == 5 ? kDenormal * static_cast<Value>(random.below(1000))
                    : kind == 6 ? kLargest / static_cast<Value>(1 + random.below(9))
                    : kind == 7 ? kNormal * static_cast<Value>(random.below(300))
                                : u * scale;
      values.push_back(random.one_in(2) ? -value : value);
    }
  }
  return values;
}

/// As bits: NaNs are equal, and zeros of two signs are not.
template <class Value>
std::vector<Key<Value>> bits(const std::vector<Value>& values) {
  std::vector<Key<Value>> bits;
  for (const Value value : values) {
    bits.push_back(std::bit_cast<Key<Value>>(
        std::isnan(value) ? std::numeric_limits<Value>::quiet_NaN() : value));
  }
  return bits;
}

const std::vector<std::string> kWires = {"bf16", "fp16", "int8", "4bit", "2bit", "ternary", "sign"};

const BlockCoder& coder_of(const std::string& wire) {
  return *codec_registry().find(wire).codec.blocks();
}

template <class Value>
void expect_the_reference(const std::string& wire) {
  const BlockCoder& coder = coder_of(wire);
  Random random(1);
  for (int turn = 0; turn < 200; ++turn) {
    const std::vector<Value> values = drawn<Value>(random, random.below(1500));
    const Bytes bytes = encoded(coder, values);
    const std::vector<Value> once = decoded<Value>(coder, bytes, values.size());
    ASSERT_EQ(bits(once), bits(reference::coded_part(wire, values))) << wire << ", turn " << turn;
    ASSERT_EQ(encoded(coder, once), bytes) << wire << ", turn " << turn;
  }
}

TEST(BlockCoder, SimdTargets_MatchReferenceAndReencodeToSameBytes) {
  testing::for_each_simd_target([] {
    for (const std::string& wire : kWires) {
      expect_the_reference<float>(wire);
      expect_the_reference<double>(wire);
    }
  });
}

// Whatever a vector is cut into, as long as parts begin with a block.
TEST(BlockCoder, CodesEachBlockByItself) {
  Random random(2);
  for (const std::string& wire : kWires) {
    const BlockCoder& coder = coder_of(wire);
    const std::vector<float> values = drawn<float>(random, 3000);
    const Bytes whole = encoded(coder, values);
    Bytes parts;
    for (std::size_t begin = 0; begin < values.size();) {
      const std::size_t length =
          std::min(values.size() - begin, coder.block() * (1 + random.below(4)));
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
      const Bytes part =
          encoded(coder, std::vector<float>(first, first + static_cast<std::ptrdiff_t>(length)));
      parts.insert(parts.end(), part.begin(), part.end());
      begin += length;
    }
    EXPECT_EQ(parts, whole) << wire;
  }
}

template <class Value>
void expect_nan_in_its_block_only(const std::string& wire) {
  const BlockCoder& coder = coder_of(wire);
  for (const double bad : {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    std::vector<Value> values(3 * coder.block() + 5, Value{1});
    for (const std::size_t at : {coder.block() + 7, values.size() - 1}) {
      std::vector<Value> with = values;
      with[at] = static_cast<Value>(bad);
      const std::vector<Value> once = decoded<Value>(coder, encoded(coder, with), with.size());
      for (std::size_t i = 0; i < once.size(); ++i) {
        ASSERT_EQ(std::isnan(once[i]), i / coder.block() == at / coder.block())
            << wire << ", " << bad << " at " << at << ": " << i;
      }
      ASSERT_EQ(encoded(coder, once), encoded(coder, with)) << wire;
    }
  }
}

TEST(BlockCoder, ABlockWithAnythingThatIsNotFiniteIsNan) {
  for (const std::string& wire : kWires) {
    expect_nan_in_its_block_only<float>(wire);
    expect_nan_in_its_block_only<double>(wire);
  }
  // The largest float32 overflows in bfloat16, and saturates in float16.
  const std::vector<float> large(3, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isnan(
      decoded<float>(coder_of("bf16"), encoded(coder_of("bf16"), large), large.size())[2]));
  EXPECT_EQ(decoded<float>(coder_of("fp16"), encoded(coder_of("fp16"), large), 3)[2], 65504.0F);
}

TEST(BlockCoder, TakesAsManyBytesAsThePageSays) {
  const auto bytes = [](const std::string& wire, std::size_t count, DataType type) {
    return coder_of(wire).bytes(type, count);
  };
  constexpr DataType kFloat = DataType::kFloat32;
  constexpr DataType kDouble = DataType::kFloat64;
  EXPECT_EQ(bytes("bf16", 1000, kFloat), 2000U);
  EXPECT_EQ(bytes("fp16", 1000, kDouble), 2000U);
  EXPECT_EQ(bytes("int8", 1000, kFloat), 1000U + 4 * 2);
  EXPECT_EQ(bytes("int8", 1000, kDouble), 1000U + 4 * 2);
  EXPECT_EQ(bytes("4bit", 1001, kFloat), 501U + 16 * 2);
  EXPECT_EQ(bytes("4bit", 1001, kDouble), 501U + 16 * 4);
  EXPECT_EQ(bytes("2bit", 1001, kFloat), 251U + 4 * 8);
  EXPECT_EQ(bytes("2bit", 1001, kDouble), 251U + 4 * 16);
  EXPECT_EQ(bytes("ternary", 640, kFloat), 2U * (2 + 64));
  EXPECT_EQ(bytes("ternary", 1001, kFloat), 3U * 64 + 9 + 4 * 2);
  EXPECT_EQ(bytes("ternary", 1001, kDouble), 3U * 64 + 9 + 4 * 4);
  EXPECT_EQ(bytes("sign", 1001, kFloat), 126U + 4 * 4);
  EXPECT_EQ(bytes("sign", 1001, kDouble), 126U + 4 * 8);
  for (const std::string& wire : kWires) {
    EXPECT_EQ(bytes(wire, 0, kFloat), 0U);
  }
  EXPECT_EQ(codec_registry().find("raw").codec.blocks(), nullptr);
  EXPECT_EQ(codec_registry().find("lossless").codec.blocks(), nullptr);
}

}  // namespace
}  // namespace gtopk::sparse
