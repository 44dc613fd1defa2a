// Sparse, wire: `sign` and `2bit`: bit for bit what the page says, finite results for the
// largest and the smallest numbers, and what no block contains is refused.
#include "src/gtopk/wire/levels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

using Sign = AsLevels<1>;
using TwoBits = AsLevels<2>;
using Bytes = std::vector<std::byte>;

template <class Format, class Value>
std::vector<Value> rounded(std::vector<Value> values) {
  std::vector<std::uint32_t> indices(values.size());
  const EntriesOut<Value, std::uint32_t> list{indices.data(), values.data()};
  Rounding<Value, std::uint32_t> rounding(list, {}, true);
  Format::round(list, values.size(), rounding);
  EXPECT_EQ(rounding.rounded().kept, values.size()) << "nothing becomes zero";
  EXPECT_TRUE(rounding.rounded().finite);
  return values;
}

template <class Format, class Value>
Bytes written(const std::vector<Value>& values) {
  Bytes bytes(Format::template bytes<Value>(values.size()));
  Format::write(values.data(), values.size(), bytes.data());
  return bytes;
}

template <class Format, class Value>
std::vector<Value> read(const Bytes& bytes, std::size_t count) {
  EXPECT_EQ(bytes.size(), Format::template bytes<Value>(count));
  std::vector<Value> values(count);
  Format::read(bytes.data(), count, values.data());
  return values;
}

Bytes bytes_of(const std::vector<float>& scales, const std::vector<unsigned>& codes) {
  Bytes bytes(scales.size() * sizeof(float));
  std::memcpy(bytes.data(), scales.data(), bytes.size());
  for (const unsigned code : codes) {
    bytes.push_back(static_cast<std::byte>(code));
  }
  return bytes;
}

using Floats = std::vector<float>;

TEST(Levels, SignIsWhatThePageSays) {
  const Floats values = rounded<Sign>(Floats{1, -2, 3, -8, 6});
  EXPECT_EQ(values, Floats({4, -4, 4, -4, 4}));
  EXPECT_EQ(written<Sign>(values), bytes_of({4}, {0b01010}));
  EXPECT_EQ((read<Sign, float>(bytes_of({4}, {0b01010}), 5)), values);
}

TEST(Levels, TwoBitsAreWhatThePageSays) {
  // The mean is 4: of 1, 2 and 3 it is 2, of 8 and 6 it is 7.
  const Floats values = rounded<TwoBits>(Floats{1, -2, 3, -8, 6});
  EXPECT_EQ(values, Floats({2, -2, 2, -7, 7}));
  EXPECT_EQ(written<TwoBits>(values), bytes_of({2, 7}, {0b11'00'01'00, 0b10}));
  EXPECT_EQ((read<TwoBits, float>(bytes_of({2, 7}, {0b11'00'01'00, 0b10}), 5)), values);
  EXPECT_EQ(written<TwoBits>(Floats{3, -3}), bytes_of({3, 3}, {0b01'00})) << "one level is both";
}

TEST(Levels, BlocksHaveScalesOfTheirOwn) {
  Floats values(256, 1);
  values.push_back(-5);
  EXPECT_EQ(rounded<Sign>(values), values);
  Bytes expected = bytes_of({1, 5}, std::vector<unsigned>(32, 0));
  expected.push_back(std::byte{1});
  EXPECT_EQ(written<Sign>(values), expected);
}

TEST(Levels, OnlyASumThatOverflowsIsScaledDown) {
  constexpr double kLargest = 0x1p1023;
  constexpr double kSmallest = 0x1p-1074;
  const std::vector<double> values = {kSmallest, 3 * kSmallest, kLargest, -kLargest, kLargest / 2};
  // The last is below the mean of all five; the mean of it and the first two is a third of it.
  const double low = rounded<TwoBits>(values)[0];
  EXPECT_NEAR(low / kLargest, 1.0 / 6, 1e-6);
  EXPECT_EQ(rounded<TwoBits>(values), std::vector<double>({low, low, kLargest, -kLargest, low}));
  const std::vector<double> apart = {kSmallest, 3 * kSmallest, kLargest, -kLargest};
  EXPECT_EQ(rounded<TwoBits>(apart),
            std::vector<double>({2 * kSmallest, 2 * kSmallest, kLargest, -kLargest}));
  EXPECT_EQ(rounded<Sign>(apart),
            std::vector<double>({kLargest / 2, kLargest / 2, kLargest / 2, -kLargest / 2}));
}

TEST(Levels, InvalidBlock_IsRefused) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float scale : {0.0F, -4.0F, nan, infinity}) {
    EXPECT_THROW((read<Sign, float>(bytes_of({scale}, {1}), 5)), Damaged) << scale;
    EXPECT_THROW((read<TwoBits, float>(bytes_of({scale, 7}, {8, 0}), 5)), Damaged) << scale;
    EXPECT_THROW((read<TwoBits, float>(bytes_of({2, scale}, {8, 0}), 5)), Damaged) << scale;
  }
  EXPECT_THROW((read<Sign, float>(bytes_of({4}, {0b100000}), 5)), Damaged) << "a sixth value";
  EXPECT_THROW((read<TwoBits, float>(bytes_of({2, 7}, {8, 0b1000}), 5)), Damaged);
  EXPECT_THROW((read<TwoBits, float>(bytes_of({7, 2}, {8, 0}), 5)), Damaged) << "out of order";
  EXPECT_THROW((read<TwoBits, float>(bytes_of({2, 2}, {8, 0}), 5)), Damaged) << "one level as two";
  EXPECT_THROW((read<TwoBits, float>(bytes_of({2, 7}, {0, 0}), 5)), Damaged) << "nobody has 7";
  EXPECT_THROW((read<TwoBits, float>(bytes_of({2, 7}, {0xAA, 2}), 5)), Damaged) << "nobody has 2";
  Bytes exact(sizeof(double) + 1);
  const double fine = 1 + 0x1p-24;  // 25 bits
  std::memcpy(exact.data(), &fine, sizeof fine);
  EXPECT_THROW((read<Sign, double>(exact, 5)), Damaged);
}

/// Ordinary, tiny, huge and mixed values, in several blocks.
template <class Value>
std::vector<Value> mixed_values(std::uint64_t seed) {
  reference::Random random(seed);
  const std::uint64_t kind = random.below(4);
  constexpr Value kLargest = std::numeric_limits<Value>::max();
  constexpr Value kSmallest = std::numeric_limits<Value>::denorm_min();
  std::vector<Value> values(1 + random.below(600));
  for (Value& value : values) {
    const std::uint64_t from = kind == 3 ? random.below(3) : kind;
    value = from == 0   ? static_cast<Value>(1 + random.uniform())
            : from == 1 ? kSmallest * static_cast<Value>(1 + random.below(3))
                        : kLargest / static_cast<Value>(1 + random.below(2));
    if (random.one_in(2)) {
      value = -value;
    }
  }
  return values;
}

template <class Format, class Value>
void expect_round_trips() {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<Value> once = rounded<Format>(mixed_values<Value>(seed));
    ASSERT_EQ(rounded<Format>(once), once) << "seed " << seed;
    ASSERT_EQ((read<Format, Value>(written<Format>(once), once.size())), once) << "seed " << seed;
  }
}

TEST(Levels, RoundingTwiceAndComingOutOfAMessageChangeNothing) {
  expect_round_trips<Sign, float>();
  expect_round_trips<Sign, double>();
  expect_round_trips<TwoBits, float>();
  expect_round_trips<TwoBits, double>();
}

// On the largest 1 % of normal values 2bit loses less than half as much as sign, in squares.
TEST(Levels, TwoBits_HasUnderHalfTheSquaredErrorOfSign) {
  reference::Random random(1);
  Floats values;
  while (values.size() < 4096) {
    double sum = 0;
    for (int n = 0; n < 12; ++n) {
      sum += random.uniform() - 0.5;
    }
    if (std::fabs(sum) > 2.576) {
      values.push_back(static_cast<float>(sum));
    }
  }
  const auto lost = [&](const Floats& kept) {
    double all = 0;
    double lost = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      all += values[i] * values[i];
      lost += (values[i] - kept[i]) * (values[i] - kept[i]);
    }
    return lost / all;
  };
  EXPECT_LT(lost(rounded<Sign>(values)), 0.012);
  EXPECT_LT(lost(rounded<TwoBits>(values)), 0.5 * lost(rounded<Sign>(values)));
}

}  // namespace
}  // namespace gtopk::sparse
