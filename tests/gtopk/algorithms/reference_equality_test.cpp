// Sparse, algorithms: over the in-process transport every algorithm gives the sequential
// reference's tensor and residuals, bit for bit on every rank, in whatever order messages arrive.
// The cases include ties, signed zeros, subnormals, d = 1, k >= d, empty ranks, fewer non-zeros
// than k, overflow, NaN and infinity.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::uneven_network;

using Parameters = std::tuple<std::uint32_t, std::string, DataType>;

std::string name_of(const ::testing::TestParamInfo<Parameters>& instance) {
  const auto [size, algorithm, type] = instance.param;
  std::string name = fmt::format("P{}_{}_{}", size, algorithm, to_string(type));
  std::ranges::replace(name, '-', '_');
  return name;
}

/// Sanitizers are about fifteen times slower, mostly in the reference.
constexpr std::uint64_t kCases = support::kSanitized ? 2 : 8;

class ReferenceEquality : public ::testing::TestWithParam<Parameters> {};

// Every combination with 8 random cases (2 with sanitizers); put_back and op are drawn, wires take
// turns.
TEST_P(ReferenceEquality, TensorAndResidualsBitForBitOnEveryRank) {
  const auto [size, algorithm, type] = GetParam();
  for (std::uint64_t number = 0; number < kCases; ++number) {
    const std::uint64_t seed = 1 + number + 1000UL * size +
                               100000 * static_cast<std::uint64_t>(type) +
                               1000000 * reference::number_of(algorithm);
    reference::Case drawn = reference::random_case(seed, type, size, algorithm);
    const std::vector<std::string> wires = reference::wires(algorithm);
    const std::string& wire = drawn.problem.options.wire =
        wires[(number + size + static_cast<std::uint64_t>(type)) % wires.size()];
    InprocRanks ranks(size, uneven_network(seed));
    ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
        << drawn.description << ", " << wire;
    ASSERT_TRUE(ranks.close().empty()) << drawn.description;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ReferenceEquality,
                         ::testing::Combine(::testing::ValuesIn(reference::kRankCounts),
                                            ::testing::ValuesIn(reference::algorithms()),
                                            ::testing::ValuesIn(reference::kFloatingTypes)),
                         name_of);

TEST(Equality, EveryPutBackOpAndWireForEveryRankCount) {
  for (const std::uint32_t size : reference::kRankCounts) {
    if (support::kSanitized && size > 5) {
      continue;
    }
    for (const std::string& algorithm : reference::algorithms()) {
      for (const std::string& wire : reference::wires(algorithm)) {
        for (const PutBack put_back : {PutBack::kOwn, PutBack::kMerged}) {
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
            reference::Case drawn =
                reference::random_case(77 + size, DataType::kFloat32, size, algorithm);
            drawn.problem.options.wire = wire;
            drawn.problem.options.put_back = put_back;
            drawn.problem.options.op = op;
            InprocRanks ranks(size, uneven_network(size));
            ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
                << drawn.description << " now " << to_string(put_back) << " " << to_string(op)
                << " " << wire;
          }
        }
      }
    }
  }
}

TEST(Equality, HoldsForManyArrivalOrdersOfOneCase) {
  for (const std::string& algorithm : reference::algorithms()) {
    const reference::Case drawn = reference::random_case(5, DataType::kFloat32, 7, algorithm);
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      InprocRanks ranks(7, uneven_network(seed));
      ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
          << drawn.description << ", network seed " << seed;
    }
  }
}

TEST(Equality, HoldsAboveTheSizeAtWhichSweepsMoveToAnotherThread) {
  for (const std::string& algorithm : reference::algorithms()) {
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
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << algorithm;
  }
}

// Each call's residual is the next one's: 20 steps, as in training.
TEST(Equality, HoldsOverConsecutiveStepsWithOneResidual) {
  for (const std::string& algorithm : reference::algorithms()) {
    const std::uint32_t size = 5;
    InprocRanks ranks(size, uneven_network(3));
    std::vector<std::optional<reference::Bytes>> residuals(
        size, reference::zeros(DataType::kFloat32, 100));
    for (std::uint64_t step = 0; step < 20; ++step) {
      reference::Random random(step);
      reference::Problem problem;
      problem.d = 100;
      problem.options.k = 7;
      problem.options.algorithm = algorithm;
      problem.number = step + 1;
      problem.options.put_back = step % 2 == 0 ? PutBack::kOwn : PutBack::kMerged;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        reference::Input input{reference::zeros(problem.type, problem.d), residuals[rank]};
        for (std::uint64_t i = 0; i < problem.d; ++i) {
          reference::store(problem.type, input.gradient, i, random.uniform() - 0.5);
        }
        problem.ranks.push_back(std::move(input));
      }
      ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
          << algorithm << " step " << step;
      residuals = reference::all_reduce(problem).residuals;
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Equality, AnEmptyTensorIsNoMatter) {
  for (const std::uint32_t size : {1U, 2U, 3U, 5U}) {
    for (const std::string& algorithm : reference::algorithms()) {
      reference::Problem problem;
      problem.options.k = 0;
      problem.options.algorithm = algorithm;
      problem.ranks.resize(size);
      InprocRanks ranks(size);
      EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << algorithm;
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

}  // namespace
}  // namespace gtopk
