// Sparse, wire: `4bit`: bit for bit what the page says, finite results for the largest and the
// smallest numbers, and what no block contains is refused.
#include "src/gtopk/wire/four_bits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "src/numbers/keep_denormals.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

/// What is left of them.
template <class Value>
std::vector<Value> rounded(std::vector<Value> values) {
  std::vector<std::uint32_t> indices(values.size());
  const EntriesOut<Value, std::uint32_t> list{indices.data(), values.data()};
  Rounding<Value, std::uint32_t> rounding(list, {}, true);
  As4Bit::round(list, values.size(), rounding);
  EXPECT_TRUE(rounding.rounded().finite);
  values.resize(rounding.rounded().kept);
  return values;
}

template <class Value>
Bytes written(const std::vector<Value>& values) {
  constexpr std::byte kUntouched{0xA5};
  const std::size_t size = As4Bit::bytes<Value>(values.size());
  Bytes bytes(size + 2 * sizeof(Value), kUntouched);
  As4Bit::write(values.data(), values.size(), bytes.data());
  for (; bytes.size() > size; bytes.pop_back()) {
    EXPECT_EQ(bytes.back(), kUntouched) << "byte " << bytes.size() << " of " << size;
  }
  return bytes;
}

template <class Value>
std::vector<Value> read(const Bytes& bytes, std::size_t count) {
  EXPECT_EQ(bytes.size(), As4Bit::bytes<Value>(count));
  std::vector<Value> values(count);
  As4Bit::read(bytes.data(), count, values.data());
  return values;
}

/// A block of the float with these upper bits.
Bytes block(std::uint16_t unit, const std::vector<unsigned>& codes) {
  Bytes bytes(sizeof unit);
  std::memcpy(bytes.data(), &unit, sizeof unit);
  for (const unsigned code : codes) {
    bytes.push_back(static_cast<std::byte>(code));
  }
  return bytes;
}

constexpr std::uint16_t kTwo = 0x4000;
constexpr std::uint16_t kMinusTwo = 0xC000;

TEST(FourBits, ABlockIsWhatThePageSays) {
  // In units of 2: 127, 10, -10, 2.5, -110, 4.5 and 5.5, of which 2 and 4 are nearest to level 0.
  EXPECT_EQ(rounded(Floats{254, 20, -20, 5, -220, 9, 11}), Floats({254, 20, -20, -220, 20}));
  EXPECT_EQ(rounded(Floats{-254, -20, 20, -5, 220, -9, -11}), Floats({-254, -20, 20, 220, -20}));
  const Floats values = {254, 20, -20, -220, 20};
  const Bytes bytes = block(kTwo, {0x0F, 0x88, 0x06});
  EXPECT_EQ(written(values), bytes);
  EXPECT_EQ(read<float>(bytes, 5), values);
  EXPECT_EQ(read<float>(block(kMinusTwo, {0x0F, 0x88, 0x06}), 5),
            Floats({-254, -20, 20, 220, -20}));
}

TEST(FourBits, OfTwoLevelsTheOneNearerToZeroIsTaken) {
  // 25.5 units are 26, and 26.5 too.
  EXPECT_EQ(rounded(Floats{127, 15, 16, -15, -16, -5, -6, 5, 6, -41, -42, 25, 25.5, 26.5}),
            Floats({127, 10, 20, -10, -21, -10, 10, -34, -48, 20, 31, 31}));
}

TEST(FourBits, TheUnitHasAsManyBitsAsHalfANumberHas) {
  const float unit = FourBits<float>::unit_of(127 * 1.99999F, 0);
  EXPECT_EQ(unit, 2 - 0x1p-7F);
  EXPECT_EQ(rounded(Floats{127 * 1.99999F}), Floats({127 * unit}));
  EXPECT_EQ(FourBits<double>::unit_of(0, -127 * 1.999999999), -(2 - 0x1p-20));
}

TEST(FourBits, BlocksHave64EntriesOfWhatIsLeft) {
  Floats values;
  for (int i = 0; i < 70; ++i) {
    values.push_back(127);
    values.push_back(1);  // becomes zero
  }
  values.push_back(-1);  // in the second block, whose first entry is the 65th that is left
  EXPECT_EQ(rounded(values), Floats(70, 127));
  values.assign(64, 127);
  values.push_back(1);  // the next block's
  values.push_back(-3);
  const float unit = FourBits<float>::unit_of(1, -3);
  EXPECT_EQ(rounded(values)[64], -48 * unit);
  EXPECT_EQ(rounded(values)[65], 127 * unit);
  EXPECT_EQ(written(rounded(values)).size(), 34U + 3U);
  EXPECT_EQ(written(Floats(128, 127)).size(), 2 * 34U);
}

TEST(FourBits, InvalidBlock_IsRefused) {
  constexpr std::uint16_t kNan = 0x7FC0;
  constexpr std::uint16_t kInfinity = 0x7F80;
  constexpr std::uint16_t kLargest = 0x7F7F;  // 127 of it are infinite
  constexpr std::uint16_t kSubnormal = 0x0001;
  for (const std::uint16_t unit : {kNan, kInfinity, kLargest, kSubnormal, std::uint16_t{0}}) {
    EXPECT_THROW(read<float>(block(unit, {0x0F, 0x88, 0x06}), 5), Damaged) << unit;
  }
  EXPECT_THROW(read<float>(block(kTwo, {0x0F, 0x88, 0x16}), 5), Damaged) << "a sixth value";
  EXPECT_THROW(read<float>(block(kTwo, {0x0F, 0x78, 0x06}), 5), Damaged) << "a zero";
  EXPECT_THROW(read<float>(block(kTwo, {0x0E, 0x88, 0x06}), 5), Damaged) << "nobody has 127";
}

/// Ordinary, tiny, huge and mixed values, in several blocks.
template <class Value>
std::vector<Value> drawn(std::uint64_t seed) {
  reference::Random random(seed);
  const std::uint64_t kind = random.below(5);
  constexpr Value kLargest = std::numeric_limits<Value>::max();
  constexpr Value kSmallest = std::numeric_limits<Value>::denorm_min();
  constexpr Value kNormal = std::numeric_limits<Value>::min();
  std::vector<Value> values(1 + random.below(300));
  for (Value& value : values) {
    const std::uint64_t from = kind == 4 ? random.below(4) : kind;
    const Value uniform = static_cast<Value>(random.uniform());
    value = from == 0   ? uniform * uniform + kNormal
            : from == 1 ? kSmallest * static_cast<Value>(1 + random.below(1000))
            : from == 2 ? kNormal * static_cast<Value>(1 + random.below(200))
                        : kLargest / static_cast<Value>(1 + random.below(20));
    if (random.one_in(2)) {
      value = -value;
    }
  }
  return values;
}

template <class Value>
void expect_round_trips() {
  const KeepDenormals guard;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const std::vector<Value> once = rounded(drawn<Value>(seed));
    const std::vector<Value> twice = rounded(once);
    ASSERT_EQ(twice, once) << "seed " << seed << ", first at "
                           << std::ranges::mismatch(once, twice).in1 - once.begin();
    ASSERT_EQ(read<Value>(written(once), once.size()), once) << "seed " << seed;
  }
}

TEST(FourBits, RoundingTwiceAndComingOutOfAMessageChangeNothing) {
  expect_round_trips<float>();
  expect_round_trips<double>();
}

}  // namespace
}  // namespace gtopk::sparse
