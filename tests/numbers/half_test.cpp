// Half conversions: exact one way, rounded to nearest even the other, checked against a table of
// all values.
#include "src/numbers/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"

namespace gtopk::sparse {
namespace {

/// All finite non-negative halves, in order, and the next value that there would be.
std::vector<double> halves(int exponent_bits) {
  std::vector<double> values;
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
    const double value = testing::decode_half(static_cast<std::uint16_t>(bits), exponent_bits);
    if (std::isfinite(value)) {
      values.push_back(value);
    }
  }
  values.push_back(2 * values.back() - values[values.size() - 2]);
  return values;
}

std::uint16_t nearest_half(float value, const std::vector<double>& values) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const auto infinity = static_cast<std::uint16_t>(values.size() - 1);
  if (magnitude >= values.back()) {
    return sign | infinity;
  }
  auto above = static_cast<std::size_t>(std::upper_bound(values.begin(), values.end(), magnitude) -
                                        values.begin());
  const std::size_t below = above - 1;
  const double to_below = magnitude - values[below];
  const double to_above = values[above] - magnitude;
  const bool up = to_above < to_below || (to_above == to_below && below % 2 == 1);
  return sign | static_cast<std::uint16_t>(up ? above : below);
}

template <class Half>
Half rounded(float value) {
  if constexpr (std::is_same_v<Half, Bfloat16>) {
    return to_bfloat16(value);
  } else {
    return to_float16(value);
  }
}

template <class Half>
class HalfTest : public ::testing::Test {
 protected:
  static constexpr int kExponentBits = std::is_same_v<Half, Bfloat16> ? 8 : 5;
};
using Halves = ::testing::Types<Bfloat16, Float16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryHalfWidensExactlyAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const TypeParam half{static_cast<std::uint16_t>(bits)};
    const double expected = testing::decode_half(half.bits, this->kExponentBits);
    const float wide = to_float(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(to_float(rounded<TypeParam>(wide)))) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide),
                std::bit_cast<std::uint32_t>(static_cast<float>(expected)))
          << bits;
      ASSERT_EQ(rounded<TypeParam>(wide).bits, half.bits);
    }
  }
}

TYPED_TEST(HalfTest, RoundsToNearestAndTiesToEvenAroundEveryMidpoint) {
  const std::vector<double> values = halves(this->kExponentBits);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto middle = static_cast<float>((values[i] + values[i + 1]) / 2);
    for (const float value :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, INFINITY), -middle,
          static_cast<float>(values[i])}) {
      ASSERT_EQ(rounded<TypeParam>(value).bits, nearest_half(value, values)) << value;
    }
  }
}

TYPED_TEST(HalfTest, RoundsAnyFloatToTheNearest) {
  const std::vector<double> values = halves(this->kExponentBits);
  testing::for_each_seed(20, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int n = 0; n < 10'000; ++n) {
      const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(to_float(rounded<TypeParam>(value))));
      } else {
        ASSERT_EQ(rounded<TypeParam>(value).bits, nearest_half(value, values)) << value;
      }
    }
  });
}

}  // namespace
}  // namespace gtopk::sparse
