// The selection order: magnitudes as integers, ties by index.
#include "src/gtopk/value/selection_order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/seeds.hpp"

namespace gtopk::sparse {
namespace {

template <class Value>
class SelectionOrderTest : public ::testing::Test {};
using Values = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SelectionOrderTest, Values);

TYPED_TEST(SelectionOrderTest, KeysOrderAsMagnitudesDo) {
  testing::for_each_seed(100, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int n = 0; n < 100; ++n) {
      const auto kind = testing::random_kind(random);
      const auto a = testing::random_value<TypeParam>(kind, 0, 1, random);
      const auto b = testing::random_value<TypeParam>(kind, 0, 1, random);
      ASSERT_EQ(magnitude_key(a) < magnitude_key(b), std::fabs(a) < std::fabs(b)) << a << ' ' << b;
      ASSERT_EQ(magnitude_key(a) == magnitude_key(b), std::fabs(a) == std::fabs(b));
    }
  });
}

TYPED_TEST(SelectionOrderTest, NegativeZeroIsZero) {
  EXPECT_EQ(magnitude_key(TypeParam{-0.0}), 0U);
  EXPECT_EQ(magnitude_key(TypeParam{0.0}), 0U);
}

TYPED_TEST(SelectionOrderTest, OnlyFiniteValuesHaveFiniteKeys) {
  using Limits = std::numeric_limits<TypeParam>;
  for (const TypeParam value :
       {Limits::max(), Limits::lowest(), Limits::denorm_min(), TypeParam{0}}) {
    EXPECT_TRUE(is_finite_key<TypeParam>(magnitude_key(value))) << value;
  }
  for (const TypeParam value : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                                -Limits::quiet_NaN(), Limits::signaling_NaN()}) {
    EXPECT_FALSE(is_finite_key<TypeParam>(magnitude_key(value))) << value;
    EXPECT_GE(magnitude_key(value), magnitude_key(Limits::infinity()));
  }
}

}  // namespace
}  // namespace gtopk::sparse
