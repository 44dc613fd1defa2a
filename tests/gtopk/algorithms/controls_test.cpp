// Sparse, algorithms: the controls, `random-k` and `true-topk`: what is drawn, and that they
// deliver what their names say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "src/gtopk/algorithms/permutation.hpp"
#include "tests/gtopk/algorithms/noise.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using sparse::testing::noise;
using support::InprocRanks;

TEST(Permutation, AnyDAndSeed_IsBijective) {
  for (std::uint64_t d = 1; d <= 300; ++d) {
    for (const std::uint64_t seed : {0UL, 1UL, d, std::numeric_limits<std::uint64_t>::max()}) {
      const sparse::Permutation permutation(seed, d);
      std::vector<std::uint64_t> images;
      for (std::uint64_t i = 0; i < d; ++i) {
        images.push_back(permutation(i));
      }
      std::ranges::sort(images);
      std::vector<std::uint64_t> all(d);
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(images, all) << "d=" << d << " seed " << seed;
    }
  }
}

TEST(Permutation, DrawsTheReferencesIndicesUpToTheLargestTensors) {
  for (const std::uint64_t d : {1UL, 2UL, 1000UL, 25'557'032UL, 1UL << 32U, (1UL << 40U) + 7}) {
    for (const std::uint64_t seed : {0UL, 7UL, ~0UL}) {
      const std::uint64_t k = std::min(d, 100UL);
      const sparse::Permutation permutation(seed, d);
      std::vector<std::uint64_t> drawn;
      for (std::uint64_t i = 0; i < k; ++i) {
        drawn.push_back(permutation(i));
      }
      std::ranges::sort(drawn);
      EXPECT_EQ(drawn, reference::drawn_indices(seed, d, k));
    }
  }
}

// 20,000 seeds that draw three of 13 indices: every index and every pair comes up equally often,
// within five standard deviations.
TEST(Permutation, DrawsEveryIndexAndPairAsOften) {
  constexpr std::uint64_t kSeeds = 20'000;
  constexpr std::uint64_t d = 13;
  std::vector<double> singles(d);
  std::vector<double> pairs(d * d);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::vector<std::uint64_t> drawn = reference::drawn_indices(seed, d, 3);
    for (std::size_t i = 0; i < 3; ++i) {
      ++singles[drawn[i]];
      for (std::size_t j = i + 1; j < 3; ++j) {
        ++pairs[drawn[i] * d + drawn[j]];
      }
    }
  }
  const auto expect = [](double seen, double share) {
    EXPECT_NEAR(seen, kSeeds * share, 5 * std::sqrt(kSeeds * share * (1 - share)));
  };
  for (const double seen : singles) {
    expect(seen, 3.0 / d);
  }
  for (std::uint64_t i = 0; i < d; ++i) {
    for (std::uint64_t j = i + 1; j < d; ++j) {
      expect(pairs[i * d + j], 6.0 / (d * (d - 1)));
    }
  }
}

// Of what draws at all: random-k its indices, sketch its hashes.
TEST(Draws, DifferInEveryCallUnlessThereIsASeed) {
  for (const std::string algorithm : {"random-k", "sketch"}) {
    InprocRanks ranks(3);
    Problem problem = noise(3, 1000, algorithm == "sketch" ? 5 : 20, algorithm);
    std::vector<reference::Bytes> tensors;
    for (problem.number = 1; problem.number < 4; ++problem.number) {
      ASSERT_EQ(support::differs_from_reference(ranks, problem), "") << problem.number;
      tensors.push_back(reference::all_reduce(problem).tensor);
    }
    EXPECT_NE(tensors[0], tensors[1]) << algorithm;
    EXPECT_NE(tensors[1], tensors[2]) << algorithm;
    problem.options.seed = 1;
    for (; problem.number < 7; ++problem.number) {
      ASSERT_EQ(support::differs_from_reference(ranks, problem), "") << problem.number;
      EXPECT_EQ(reference::all_reduce(problem).tensor, tensors[0]) << algorithm;
    }
  }
}

// Zeros are drawn like other values, and put_back has no effect.
TEST(RandomK, DeliversTheSumsAtItsIndicesWhateverTheyAre) {
  for (const PutBack put_back : {PutBack::kOwn, PutBack::kMerged}) {
    Problem problem = noise(2, 64, 10, "random-k");
    for (reference::Input& input : problem.ranks) {
      for (std::uint64_t i = 0; i < 64; i += 2) {
        reference::store(problem.type, input.gradient, i, 0.0);
      }
    }
    problem.options.put_back = put_back;
    problem.options.seed = 4;
    InprocRanks ranks(2);
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
    const reference::Outcome outcome = reference::all_reduce(problem);
    std::uint64_t zeros = 0;
    for (const auto& [index, sum] : outcome.delivered) {
      zeros += sum == 0 ? 1 : 0;
      for (const auto& residual : outcome.residuals) {
        EXPECT_EQ(reference::load(problem.type, *residual, index), 0.0);
      }
    }
    EXPECT_EQ(outcome.delivered.size(), 10U);
    EXPECT_GT(zeros, 0U);
  }
}

// Index 1 is no rank's largest, but the largest of the sum.
TEST(TrueTopk, FindsWhatNoRankWouldHaveSelected) {
  Problem problem = noise(3, 4, 1, "true-topk");
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const double value = i == 1 ? 2.0 : 0.0;
      reference::store(problem.type, problem.ranks[rank].gradient, i, value);
    }
    reference::store(problem.type, problem.ranks[rank].gradient, rank == 0 ? 0 : rank + 1, 3.0);
  }
  for (const auto& [algorithm, found] :
       {std::pair{"true-topk", std::uint64_t{1}}, {"exact", 0}, {"gtopk", 0}}) {
    problem.options.algorithm = algorithm;
    InprocRanks ranks(3);
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "") << algorithm;
    const reference::Outcome outcome = reference::all_reduce(problem);
    ASSERT_EQ(outcome.delivered.size(), 1U);
    EXPECT_EQ(outcome.delivered.begin()->first, found) << algorithm;
  }
}

}  // namespace
}  // namespace gtopk
