// Sparse, algorithms room: over the in-process transport every algorithm gives the sequential
// reference's tensor and residuals, bit for bit on every rank, whatever order messages arrive in.
// The cases hold ties, signed zeros, subnormals, d = 1, k >= d, empty ranks, fewer non-zeros than
// k, overflow, NaN and infinity.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "support/calls.hpp"
#include "support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using transport::inproc::FabricOptions;

/// Eager, rendezvous or a mixture, with and without delays, by seed.
FabricOptions network(std::uint64_t seed) {
  return support::network(seed, std::chrono::microseconds(seed / 4 % 2 * 50));
}

using Parameters = std::tuple<std::uint32_t, Algorithm, DataType>;

std::string name_of(const ::testing::TestParamInfo<Parameters>& instance) {
  const auto [size, algorithm, type] = instance.param;
  std::string name = fmt::format("P{}_{}_{}", size, to_string(algorithm), to_string(type));
  std::ranges::replace(name, '-', '_');
  return name;
}

class ReferenceEquality : public ::testing::TestWithParam<Parameters> {};

// 160 combinations, 8 random cases each, put_back and op drawn: 1280 cases.
TEST_P(ReferenceEquality, TensorAndResidualsBitForBitOnEveryRank) {
  const auto [size, algorithm, type] = GetParam();
  for (std::uint64_t number = 0; number < 8; ++number) {
    const std::uint64_t seed = 1 + number + 1000UL * size +
                               100000 * static_cast<std::uint64_t>(type) +
                               1000000 * static_cast<std::uint64_t>(algorithm);
    const reference::Case drawn = reference::random_case(seed, type, size, algorithm);
    InprocRanks ranks(size, network(seed));
    ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "") << drawn.description;
    ASSERT_TRUE(ranks.close().empty()) << drawn.description;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ReferenceEquality,
                         ::testing::Combine(::testing::ValuesIn(reference::kRankCounts),
                                            ::testing::ValuesIn(reference::kAlgorithms),
                                            ::testing::ValuesIn(reference::kFloatingTypes)),
                         name_of);

TEST(Equality, EveryPutBackAndOpForEveryRankCount) {
  for (const std::uint32_t size : reference::kRankCounts) {
    for (const Algorithm algorithm : reference::kAlgorithms) {
      for (const PutBack put_back : {PutBack::kOwn, PutBack::kMerged}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
          reference::Case drawn =
              reference::random_case(77 + size, DataType::kFloat32, size, algorithm);
          drawn.problem.options.put_back = put_back;
          drawn.problem.options.op = op;
          InprocRanks ranks(size, network(size));
          ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
              << drawn.description << " now " << to_string(put_back) << " " << to_string(op);
        }
      }
    }
  }
}

TEST(Equality, HoldsForManyArrivalOrdersOfOneCase) {
  for (const Algorithm algorithm : reference::kAlgorithms) {
    const reference::Case drawn = reference::random_case(5, DataType::kFloat32, 7, algorithm);
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      InprocRanks ranks(7, network(seed));
      ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
          << drawn.description << ", network seed " << seed;
    }
  }
}

TEST(Equality, HoldsAboveTheSizeAtWhichSweepsMoveToAnotherThread) {
  for (const Algorithm algorithm : reference::kAlgorithms) {
    reference::Random random(9);
    reference::Problem problem;
    problem.d = 40000;
    problem.options.k = 400;
    problem.options.algorithm = algorithm;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      reference::Input input{reference::zeros(problem.type, problem.d),
                             reference::zeros(problem.type, problem.d)};
      for (std::uint64_t i = 0; i < problem.d; ++i) {
        reference::store(problem.type, input.gradient, i, random.uniform() - 0.5);
        reference::store(problem.type, *input.residual, i, random.uniform() - 0.5);
      }
      problem.ranks.push_back(std::move(input));
    }
    InprocRanks ranks(3);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << to_string(algorithm);
  }
}

// The residual of one call is the next one's: 20 steps, as a training run makes them.
TEST(Equality, HoldsOverConsecutiveStepsWithOneResidual) {
  for (const Algorithm algorithm : reference::kAlgorithms) {
    const std::uint32_t size = 5;
    InprocRanks ranks(size, network(3));
    std::vector<std::optional<reference::Bytes>> residuals(
        size, reference::zeros(DataType::kFloat32, 100));
    for (std::uint64_t step = 0; step < 20; ++step) {
      reference::Random random(step);
      reference::Problem problem;
      problem.d = 100;
      problem.options.k = 7;
      problem.options.algorithm = algorithm;
      problem.options.put_back = step % 2 == 0 ? PutBack::kOwn : PutBack::kMerged;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        reference::Input input{reference::zeros(problem.type, problem.d), residuals[rank]};
        for (std::uint64_t i = 0; i < problem.d; ++i) {
          reference::store(problem.type, input.gradient, i, random.uniform() - 0.5);
        }
        problem.ranks.push_back(std::move(input));
      }
      ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
          << to_string(algorithm) << " step " << step;
      residuals = reference::all_reduce(problem).residuals;
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Equality, AnEmptyTensorIsNoMatter) {
  for (const std::uint32_t size : {1U, 2U, 3U, 5U}) {
    for (const Algorithm algorithm : reference::kAlgorithms) {
      reference::Problem problem;
      problem.options.k = 0;
      problem.options.algorithm = algorithm;
      problem.ranks.resize(size);
      InprocRanks ranks(size);
      EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << to_string(algorithm);
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

}  // namespace
}  // namespace gtopk
