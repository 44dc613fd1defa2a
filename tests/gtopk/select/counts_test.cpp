// How many entries each selector finds: what its section of docs/algorithms.md promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/gtopk/select/selectors.hpp"

namespace gtopk::sparse {
namespace {

using testing::Kind;

class Counts : public Selectors<testing::Types<float, std::uint32_t>> {
 protected:
  Case normal_case(const std::string& selector, std::size_t d, std::size_t k) {
    std::mt19937_64 random(d + k);
    Case one;
    one.gradient = testing::random_values<float>(Kind::kGaussian, d, random);
    one.options.selector = selector;
    one.options.k = k;
    return one;
  }
};

TEST_F(Counts, OfGaussianLieWithinAThirdOfKWhereTheValuesAreNormal) {
  for (const std::size_t k : {200, 2'000, 20'000}) {
    auto one = normal_case("gaussian", 200'000, k);
    const std::size_t count = select(one).selection.count;
    EXPECT_GE(3 * count, 2 * k);
    EXPECT_LE(3 * count, 4 * k);
    EXPECT_NE(count, k) << "an exact selection is not what is asked for";
  }
}

TEST_F(Counts, OfSampledLieWithinTheBoundsOfDgc) {
  for (const std::size_t k : {20, 200, 2'000, 20'000}) {
    auto one = normal_case("sampled", 200'000, k);
    const std::size_t count = select(one).selection.count;
    EXPECT_GE(10 * count, 8 * k);
    EXPECT_LE(10 * count, 13 * k);
  }
}

TEST_F(Counts, OfThresholdStayWithinAThirdOfKWhileTheValuesDrift) {
  constexpr std::size_t kWanted = 500;
  auto one = normal_case("threshold", 100'000, kWanted);
  std::mt19937_64 random(1);
  int steps_not_exact = 0;
  for (int step = 0; step < 60; ++step) {
    // Falls slowly, with occasional large jumps.
    const float scale = std::pow(0.98F, static_cast<float>(step)) * (step % 20 == 19 ? 50.0F : 1);
    one.gradient = testing::random_values<float>(Kind::kGaussian, one.gradient.size(), random);
    for (float& value : one.gradient) {
      value *= scale;
    }
    const Expected expected = reference(one);
    const Outcome outcome = select(one);
    expect_equal(outcome, expected, one);
    EXPECT_GE(3 * outcome.selection.count, 2 * kWanted);
    EXPECT_LE(3 * outcome.selection.count, 4 * kWanted);
    steps_not_exact += outcome.selection.count != kWanted ? 1 : 0;
    if (step == 0) {
      EXPECT_EQ(outcome.selection.count, kWanted) << "exact without a state";
    }
    if (step % 20 == 19 || (step > 0 && step % 20 == 0)) {
      EXPECT_EQ(outcome.selection.count, kWanted) << "exact where one correction does not do";
    }
    one.state = outcome.selection.next;
  }
  EXPECT_GT(steps_not_exact, 45);
}

TEST_F(Counts, OfThresholdAreExactWithAStateThatIsNoThreshold) {
  for (const double state : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e300, 1e-300}) {
    auto one = normal_case("threshold", 40'000, 100);
    one.state.numbers[0] = state;
    const Outcome outcome = select(one);
    EXPECT_EQ(outcome.selection.count, 100U) << state;
    expect_equal(outcome, reference(one), one);
  }
}

TEST_F(Counts, OfThresholdWithFewerNonZerosThanKLeaveNoState) {
  auto one = normal_case("threshold", 1'000, 50);
  std::fill(one.gradient.begin() + 30, one.gradient.end(), 0.0F);
  const Outcome outcome = select(one);
  EXPECT_EQ(outcome.selection.count, 30U);
  EXPECT_EQ(outcome.selection.next.numbers, SelectorState{}.numbers);
}

TEST_F(Counts, OfBlockAreThoseOfEachBlock) {
  auto one = normal_case("block", 1'050, 0);
  one.options.density = 0.035;
  one.options.block = 100;  // ten of 100, each 3.5 + 1/2 = 4; one of 50: 1.75 + 1/2, so 2
  EXPECT_EQ(selection_size(1'050, 0.035, 100), 42U);
  const Outcome outcome = select(one);
  ASSERT_EQ(outcome.selection.count, 42U);
  std::vector<std::size_t> counts(11);
  for (const std::uint32_t index : outcome.list.indices) {
    ++counts[index / 100];
  }
  EXPECT_EQ(counts, (std::vector<std::size_t>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2}));
}

TEST_F(Counts, OfBlockFollowTheRuleOfTheContract) {
  EXPECT_EQ(selection_size(0, 0.5, 4), 0U);
  EXPECT_EQ(selection_size(3, 0.5, 4), 2U);    // one block, shorter than b
  EXPECT_EQ(selection_size(8, 0.001, 4), 2U);  // at least one of each
  EXPECT_EQ(selection_size(9, 0.001, 4), 3U);  // also of a last block of one element
  EXPECT_EQ(selection_size(9, 1.0, 4), 9U);    // and never more than there are elements
  EXPECT_EQ(selection_size(12'288, 0.001, 4096), 12U);
}

}  // namespace
}  // namespace gtopk::sparse
