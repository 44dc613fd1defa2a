// Sparse, algorithms: `sketch` delivers what its page says, besides what the tests of every
// algorithm check.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/gtopk/algorithms/noise.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;

/// Small next to what a test plants.
Problem noise_to_sketch(std::uint32_t ranks, std::uint64_t d, std::uint64_t k,
                        DataType type = DataType::kFloat32) {
  return sparse::testing::noise(ranks, d, k, "sketch", type);
}

// Index 700 is no rank's largest, but the largest of the sum.
TEST(Sketch, FindsWhatNoRankWouldHaveSelected) {
  Problem problem = noise_to_sketch(8, 1000, 1);
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    reference::store(problem.type, problem.ranks[rank].gradient, 700, 20.0);
    reference::store(problem.type, problem.ranks[rank].gradient, rank, 21.0);
  }
  InprocRanks ranks(8);
  ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
  const reference::Outcome outcome = reference::all_reduce(problem);
  ASSERT_EQ(outcome.delivered.size(), 1U);
  EXPECT_EQ(outcome.delivered.begin()->first, 700U);
  EXPECT_EQ(outcome.delivered.begin()->second, 160.0);  // exact: estimates are never delivered
  for (const auto& residual : outcome.residuals) {
    EXPECT_EQ(reference::load(DataType::kFloat32, *residual, 700), 0.0);
    EXPECT_NE(reference::load(DataType::kFloat32, *residual, 701), 0.0);
  }
}

// The sketch takes the ring and, for float64, so do the exact values.
TEST(Sketch, GivesTheReferencesBitsByTheRing) {
  for (const auto& [size, k, type] : {std::tuple{2U, 328UL, DataType::kFloat32},
                                      {3U, 1030UL, DataType::kFloat64},
                                      {5U, 330UL, DataType::kBfloat16}}) {
    const Problem problem = noise_to_sketch(size, 60 * k, k, type);
    InprocRanks ranks(size, support::network(k));
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << size;
    EXPECT_TRUE(ranks.close().empty());
  }
}

// With 58 k >= d, acc itself is summed.
TEST(Sketch, IsTrueTopkWhereASketchWouldSendMore) {
  for (const std::uint64_t d : {57UL, 58UL, 59UL}) {
    Problem problem = noise_to_sketch(3, d, 1);
    InprocRanks ranks(3);
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "") << d;
    const reference::Outcome sketch = reference::all_reduce(problem);
    problem.options.algorithm = "true-topk";
    const reference::Outcome control = reference::all_reduce(problem);
    if (d <= 58) {
      EXPECT_EQ(sketch.tensor, control.tensor);
      EXPECT_EQ(sketch.residuals, control.residuals);
    }
  }
}

// No element and no sum overflows, but two neighbours in one cell do.
TEST(Sketch, WhoseCellsOverflowDidNotHappen) {
  Problem problem = noise_to_sketch(2, 1000, 1);
  const double large = 0.6 * std::numeric_limits<float>::max();
  for (std::uint64_t i = 0; i < 1000; ++i) {
    reference::store(problem.type, problem.ranks[1].gradient, i, large);
  }
  InprocRanks ranks(2);
  ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
  EXPECT_FALSE(reference::all_reduce(problem).happened);
}

// As in every algorithm that selects, zeros are not delivered.
TEST(Sketch, DeliversFewerThanKWhereFewerAreNotZero) {
  Problem problem = noise_to_sketch(3, 1000, 10, DataType::kFloat64);
  for (reference::Input& input : problem.ranks) {
    input.gradient = reference::zeros(problem.type, problem.d);
    reference::store(problem.type, input.gradient, 5, 1.0);
    reference::store(problem.type, input.gradient, 900, -2.0);
  }
  InprocRanks ranks(3);
  ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
  const std::map<std::uint64_t, double> both = {{5, 3.0}, {900, -6.0}};
  EXPECT_EQ(reference::all_reduce(problem).delivered, both);
}

}  // namespace
}  // namespace gtopk
