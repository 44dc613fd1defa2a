// What `dense` and a failed step need from the residual module.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/gtopk/residual/commit.hpp"
#include "tests/gtopk/value/cut.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/gtopk/value/simd_targets.hpp"

namespace gtopk::sparse {
namespace {

template <class T>
class Dense : public ::testing::Test {};
using AllTypes = ::testing::Types<float, double, Bfloat16, Float16>;
TYPED_TEST_SUITE(Dense, AllTypes);

TYPED_TEST(Dense, CommitsEverySumAndKeepsNoResidual) {
  using Value = Accumulation<TypeParam>;
  testing::for_each_seed(200, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t d = random() % 300;
    std::vector<Value> sums(d);
    std::vector<TypeParam> expected(d);
    const auto divisor = static_cast<Value>(random() % 2 == 0 ? 1 : 3);
    for (std::size_t i = 0; i < d; ++i) {
      sums[i] = static_cast<Value>(static_cast<double>(random() % 20001) - 10000) / 7;
      expected[i] = narrow<TypeParam>(sums[i] / divisor);
    }
    EXPECT_TRUE((all_representable<TypeParam, Value>(sums.data(), d, divisor)));
    std::vector<Value> residual(d, Value{5});
    const testing::Cut<TypeParam> cut(std::vector<TypeParam>(d),
                                      testing::random_cuts(d, 100, random), random);
    commit_whole<TypeParam, Value>(cut.segments(), residual.data(), sums.data(), d, divisor);
    EXPECT_TRUE(testing::same_bits(cut.joined(), expected));
    EXPECT_TRUE(testing::same_bits(residual, std::vector<Value>(d)));
    for (const Value bad :
         {std::numeric_limits<Value>::max(), -std::numeric_limits<Value>::max(),
          std::numeric_limits<Value>::infinity(), std::numeric_limits<Value>::quiet_NaN()}) {
      if (d == 0) {
        continue;
      }
      sums[random() % d] = bad;
      const bool rounds_up = sizeof(TypeParam) < sizeof(Value);  // to infinity, in the half types
      const bool fits = !rounds_up && std::isfinite(bad);
      EXPECT_EQ((all_representable<TypeParam, Value>(sums.data(), d, Value{1})), fits);
    }
  });
}

TYPED_TEST(Dense, AccumulateAddsTheResidualAndSaysWhetherAllIsFinite) {
  using Value = Accumulation<TypeParam>;
  testing::for_each_seed(1000, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t d = random() % 300;
    auto gradient = testing::random_values<TypeParam>(testing::random_kind(random), d, random);
    std::vector<Value> residual;
    if (random() % 3 != 0) {
      residual = testing::random_values<Value>(testing::random_kind(random), d, random);
    }
    if (d > 0 && random() % 4 == 0) {
      const Value bad = random() % 2 == 0 ? std::numeric_limits<Value>::infinity()
                                          : std::numeric_limits<Value>::quiet_NaN();
      gradient[random() % d] = narrow<TypeParam>(bad);
    }
    const auto expected = testing::reference_acc(gradient, residual);
    const bool finite = testing::all_finite(expected);
    testing::for_each_simd_target([&] {
      std::vector<Value> acc(d);
      EXPECT_EQ((accumulate<TypeParam, Value>)(gradient.data(),
                                               residual.empty() ? nullptr : residual.data(),
                                               acc.data(), d),
                finite);
      if (finite) {
        EXPECT_TRUE(testing::same_bits(acc, expected));
      }
      const testing::Cut<TypeParam> cut(gradient, testing::random_cuts(d, 100, random), random);
      std::vector<Value> acc_of_pieces(d);
      EXPECT_EQ((accumulate<TypeParam, Value>(cut.segments(),
                                              residual.empty() ? nullptr : residual.data(),
                                              acc_of_pieces.data(), d)),
                finite);
      EXPECT_TRUE(testing::same_bits(acc_of_pieces, acc));
    });
  });
}

TYPED_TEST(Dense, AccumulateMayWriteOverTheResidual) {
  using Value = Accumulation<TypeParam>;
  std::mt19937_64 random(1);
  const auto gradient = testing::random_values<TypeParam>(testing::Kind::kGaussian, 77, random);
  auto residual = testing::random_values<Value>(testing::Kind::kGaussian, 77, random);
  const auto expected = testing::reference_acc(gradient, residual);
  EXPECT_TRUE((accumulate<TypeParam, Value>(gradient.data(), residual.data(), residual.data(),
                                            residual.size())));
  EXPECT_TRUE(testing::same_bits(residual, expected));
}

TYPED_TEST(Dense, AStepThatDidNotHappenLeavesOnlyNan) {
  std::vector<TypeParam> tensor(33);
  fill_nan<TypeParam>(tensor.data(), tensor.size());
  for (const TypeParam value : tensor) {
    EXPECT_TRUE(std::isnan(widen(value)));
  }
  std::mt19937_64 random(1);
  const testing::Cut<TypeParam> cut(std::vector<TypeParam>(33), {5, 0, 27, 1}, random);
  fill_nan<TypeParam>(cut.segments(), 33);
  EXPECT_TRUE(testing::same_bits(cut.joined(), tensor));
}

}  // namespace
}  // namespace gtopk::sparse
