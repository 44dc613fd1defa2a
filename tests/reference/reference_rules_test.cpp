// Test support: the reference against cases worked out by hand, one rule of the contract each.
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "tests/reference/reference.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::reference {
namespace {

using Values = std::vector<double>;

Bytes bytes_of(DataType type, const Values& values) {
  Bytes bytes = zeros(type, values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(type, bytes, i, values[i]);
  }
  return bytes;
}

Values values_of(DataType type, const Bytes& bytes) {
  Values values(bytes.size() / size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load(type, bytes, i);
  }
  return values;
}

/// One row per rank, all with zero residuals.
Problem problem_of(DataType type, const std::vector<Values>& rows, const SparseOptions& options) {
  Problem problem;
  problem.type = type;
  problem.d = rows.front().size();
  problem.options = options;
  problem.ranks.reserve(rows.size());
  for (const Values& row : rows) {
    problem.ranks.push_back({bytes_of(type, row), zeros(accumulation_type(type), problem.d)});
  }
  return problem;
}

std::vector<Values> residuals_of(const Problem& problem, const Outcome& outcome) {
  std::vector<Values> rows;
  for (const auto& residual : outcome.residuals) {
    rows.push_back(values_of(accumulation_type(problem.type), residual.value()));
  }
  return rows;
}

class EveryType : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::ValuesIn(kFloatingTypes),
                         [](const auto& name) { return std::string(to_string(name.param)); });

// (A,1) (B,2) (A,3) (C,.5), P = 4, k = 1. Node (0,1) keeps B=2 and drops A=1, to rank 0. Node (2,3)
// keeps A=3 and drops C=.5, to rank 2. The root keeps A=3 and drops B=2, to rank 0. F = {A}.
TEST_P(EveryType, CounterexampleUnderOwn_ReturnsDroppedSumToRank0) {
  for (const char* const algorithm : {"gtopk", "gtopk-tree", "rs-ag"}) {
    const Problem problem = published_counterexample(GetParam(), PutBack::kOwn, algorithm);
    const Outcome outcome = all_reduce(problem);
    EXPECT_EQ(values_of(GetParam(), outcome.tensor), Values({3.0, 0.0, 0.0}));
    // A is in F: rank 0's and rank 2's entries are cleared, the partial sum 1 dropped on its way
    // comes back to rank 0. B and C are not: ranks 1 and 3 keep their own.
    EXPECT_EQ(residuals_of(problem, outcome),
              std::vector<Values>({{1, 0, 0}, {0, 2, 0}, {0, 0, 0}, {0, 0, 0.5}}));
  }
}

TEST_P(EveryType, CounterexampleUnderMerged_ReturnsDropsToLowestRank) {
  for (const char* const algorithm : {"gtopk", "gtopk-tree", "rs-ag"}) {
    const Problem problem = published_counterexample(GetParam(), PutBack::kMerged, algorithm);
    const Outcome outcome = all_reduce(problem);
    EXPECT_EQ(values_of(GetParam(), outcome.tensor), Values({3.0, 0.0, 0.0}));
    EXPECT_EQ(residuals_of(problem, outcome),
              std::vector<Values>({{1, 2, 0}, {0, 0, 0}, {0, 0, 0.5}, {0, 0, 0}}));
  }
}

TEST_P(EveryType, AnAverageDividesTheResultAndNoResidual) {
  const Problem problem =
      published_counterexample(GetParam(), PutBack::kOwn, "gtopk", ReduceOp::kAvg);
  const Outcome outcome = all_reduce(problem);
  EXPECT_EQ(values_of(GetParam(), outcome.tensor), Values({0.75, 0.0, 0.0}));
  EXPECT_EQ(residuals_of(problem, outcome),
            std::vector<Values>({{1, 0, 0}, {0, 2, 0}, {0, 0, 0}, {0, 0, 0.5}}));
}

TEST_P(EveryType, TopkAndDenseDeliverAllOfThePublishedCounterexample) {
  for (const char* const algorithm : {"topk", "dense"}) {
    const Problem problem = published_counterexample(GetParam(), PutBack::kOwn, algorithm);
    const Outcome outcome = all_reduce(problem);
    EXPECT_EQ(values_of(GetParam(), outcome.tensor), Values({4.0, 2.0, 0.5}));
    EXPECT_EQ(residuals_of(problem, outcome), std::vector<Values>(4, Values(3, 0.0)));
  }
}

TEST_P(EveryType, EqualMagnitudes_AreSelectedByLowestIndex) {
  const Problem problem = problem_of(GetParam(), {{-0.0, 1.0, -1.0, 1.0}}, {.k = 2});
  const Outcome outcome = all_reduce(problem);
  EXPECT_EQ(values_of(GetParam(), outcome.tensor), Values({0.0, 1.0, -1.0, 0.0}));
  EXPECT_EQ(residuals_of(problem, outcome), std::vector<Values>({{0.0, 0.0, 0.0, 1.0}}));
}

TEST_P(EveryType, ARankWithFewerNonZerosThanKSendsAShorterList) {
  const Problem problem =
      problem_of(GetParam(), {{0.0, 4.0, -0.0, 0.0}, {0.0, 0.0, 0.0, 0.0}}, {.k = 3});
  const Outcome outcome = all_reduce(problem);
  EXPECT_EQ(outcome.selected, std::vector<std::uint64_t>({1, 0}));
  EXPECT_EQ(outcome.lists[0].sent, std::vector<std::uint64_t>({1}));
  EXPECT_EQ(outcome.lists[0].received, std::vector<std::uint64_t>({0}));
}

TEST_P(EveryType, OppositeValuesStayUnderOwnAndVanishUnderMerged) {
  const std::vector<Values> rows = {{1.0, 0.5}, {-1.0, 0.5}};
  const Problem own = problem_of(GetParam(), rows, {.k = 1, .put_back = PutBack::kOwn});
  EXPECT_EQ(residuals_of(own, all_reduce(own)), rows);
  const Problem merged = problem_of(GetParam(), rows, {.k = 1, .put_back = PutBack::kMerged});
  EXPECT_EQ(residuals_of(merged, all_reduce(merged)), std::vector<Values>({{0, 0.5}, {0, 0.5}}));
  EXPECT_EQ(values_of(GetParam(), all_reduce(merged).tensor), Values({0.0, 0.0}));
}

TEST_P(EveryType, TopkDeliversSumsThatCancel) {
  const Problem problem =
      problem_of(GetParam(), {{1.0, 0.5}, {-1.0, 0.5}}, {.k = 1, .algorithm = "topk"});
  const Outcome outcome = all_reduce(problem);
  EXPECT_EQ(values_of(GetParam(), outcome.tensor), Values({0.0, 0.0}));
  EXPECT_EQ(residuals_of(problem, outcome), std::vector<Values>({{0, 0.5}, {0, 0.5}}));
  EXPECT_EQ(outcome.delivered.count(0), 1U);
}

// P = 5: ranks 0 and 1 fold; leaves are (0,1), 2, 3, 4. P = 6: (0,1), (2,3), 4, 5.
TEST_P(EveryType, FoldedRanks_MergeBeforeOtherLeavesInOrder) {
  const Problem five =
      problem_of(GetParam(), {{4, 0, 0}, {0, 3, 0}, {0, 3, 0}, {0, 0, 5}, {0, 0, 0}},
                 {.k = 1, .put_back = PutBack::kMerged});
  // (0,1): keeps 0:4, drops 1:3 to rank 0. With leaf 2: keeps 0:4, drops 1:3 to rank 0. (3),(4):
  // 2:5. Root: keeps 2:5, drops 0:4 to rank 0.
  const Outcome outcome = all_reduce(five);
  EXPECT_EQ(values_of(GetParam(), outcome.tensor), Values({0, 0, 5}));
  EXPECT_EQ(residuals_of(five, outcome),
            std::vector<Values>({{4, 6, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}}));

  const Problem six =
      problem_of(GetParam(), {{1, 0, 0}, {0, 2, 0}, {0, 0, 3}, {4, 0, 0}, {0, 5, 0}, {0, 0, 6}},
                 {.k = 1, .put_back = PutBack::kMerged});
  // (0,1): 1:2, drops 0:1 to 0. (2,3): 0:4, drops 2:3 to 2. Their node: 0:4, drops 1:2 to 0. (4,5):
  // 2:6, drops 1:5 to 4. Root: 2:6, drops 0:4 to 0.
  const Outcome outcome_six = all_reduce(six);
  EXPECT_EQ(values_of(GetParam(), outcome_six.tensor), Values({0, 0, 6}));
  EXPECT_EQ(
      residuals_of(six, outcome_six),
      std::vector<Values>({{5, 2, 0}, {0, 0, 0}, {0, 0, 3}, {0, 0, 0}, {0, 5, 0}, {0, 0, 0}}));
}

TEST_P(EveryType, NonFiniteResidual_MakesTensorNanAndKeepsResiduals) {
  for (const std::string& algorithm : algorithms()) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      Problem problem =
          problem_of(GetParam(), {{1, 2}, {3, 0}, {0, 1}}, {.k = 1, .algorithm = algorithm});
      store(accumulation_type(GetParam()), *problem.ranks[2].residual, 0, bad);
      const Outcome outcome = all_reduce(problem);
      EXPECT_FALSE(outcome.happened);
      for (const double value : values_of(GetParam(), outcome.tensor)) {
        EXPECT_TRUE(std::isnan(value));
      }
      for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(outcome.residuals[rank], problem.ranks[rank].residual);
      }
    }
  }
}

TEST_P(EveryType, ASumThatOverflowsDidNotHappen) {
  const DataType acc_type = accumulation_type(GetParam());
  for (const std::string& algorithm : algorithms()) {
    // Both entries: random-k delivers exactly what it draws.
    Problem problem = problem_of(GetParam(), {{0, 1}, {0, 1}}, {.k = 2, .algorithm = algorithm});
    store(acc_type, *problem.ranks[0].residual, 0, largest(acc_type));
    store(acc_type, *problem.ranks[1].residual, 0, largest(acc_type));
    EXPECT_FALSE(all_reduce(problem).happened) << algorithm;
  }
}

TEST(ReferenceRules, OverflowingSum_DoesNotHappenUnlessAverageFits) {
  for (const std::string& algorithm : algorithms()) {
    SparseOptions options{.k = 1, .algorithm = algorithm};
    EXPECT_FALSE(all_reduce(problem_of(DataType::kFloat16, {{65504.0}, {16.0}}, options)).happened);
    options.op = ReduceOp::kAvg;
    const Outcome outcome =
        all_reduce(problem_of(DataType::kFloat16, {{65504.0}, {16.0}}, options));
    EXPECT_TRUE(outcome.happened);
    EXPECT_EQ(load(DataType::kFloat16, outcome.tensor, 0),
              32768.0);  // 32760, spacing 16, tie to even
  }
}

TEST(ReferenceRules, Dense_AddsAlongTreeIfSmallAndRingIfLarge) {
  constexpr double kBig = 0x1p24;  // float32: kBig + 1 rounds back to kBig
  const std::vector<Values> small = {{kBig}, {1.0}, {1.0}, {1.0}};
  const SparseOptions options{.k = 1, .algorithm = "dense"};
  EXPECT_EQ(load(DataType::kFloat32,
                 all_reduce(problem_of(DataType::kFloat32, small, options)).tensor, 0),
            kBig + 2.0);  // (kBig + 1) + (1 + 1)

  std::vector<Values> large;
  large.reserve(small.size());
  for (const Values& row : small) {
    large.emplace_back(kDenseTreeBytes / 4 + 4, row.front());
  }
  const std::uint64_t d = large.front().size();
  const Outcome ring = all_reduce(problem_of(DataType::kFloat32, large, options));
  // Chunk 3 starts at rank 0: ((kBig + 1) + 1) + 1. Chunk 0 ends there: ((1 + 1) + 1) + kBig, 3
  // rounded to 4.
  EXPECT_EQ(load(DataType::kFloat32, ring.tensor, d - 1), kBig);
  EXPECT_EQ(load(DataType::kFloat32, ring.tensor, 0), kBig + 4.0);
  // Chunk 2 starts at rank 3: ((1 + kBig) + 1) + 1. Chunk 1 at rank 2: ((1 + 1) + kBig) + 1,
  // a tie that goes to the even mantissa.
  EXPECT_EQ(load(DataType::kFloat32, ring.tensor, d / 2), kBig);
  EXPECT_EQ(load(DataType::kFloat32, ring.tensor, d / 4), kBig + 4.0);
}

TEST(ReferenceRules, NoResidualIsAResidualOfPositiveZeros) {
  Problem problem = problem_of(DataType::kFloat32, {{-0.0, 1.0}}, {.k = 1, .algorithm = "dense"});
  const Bytes with_zeros = all_reduce(problem).tensor;
  problem.ranks[0].residual.reset();
  EXPECT_EQ(all_reduce(problem).tensor, with_zeros);
  EXPECT_FALSE(std::signbit(load(DataType::kFloat32, with_zeros, 0)));
}

using Counts = std::vector<std::uint64_t>;

TEST(ReferenceRules, ListsSentAndReceivedFollowTheRounds) {
  // Disjoint single entries, k = 1: every list has one entry, so only the rounds matter.
  const std::vector<Values> rows = {
      {5, 0, 0, 0, 0}, {0, 4, 0, 0, 0}, {0, 0, 3, 0, 0}, {0, 0, 0, 2, 0}, {0, 0, 0, 0, 1}};
  SparseOptions options{.k = 1};
  const Outcome doubling = all_reduce(problem_of(DataType::kFloat32, rows, options));
  const std::vector<std::size_t> sent = {3, 1, 2, 2, 2};
  const std::vector<std::size_t> received = {3, 1, 2, 2, 2};
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    EXPECT_EQ(doubling.lists[rank].sent.size(), sent[rank]);
    EXPECT_EQ(doubling.lists[rank].received.size(), received[rank]);
  }

  options.algorithm = "gtopk-tree";
  const Outcome tree = all_reduce(problem_of(DataType::kFloat32, rows, options));
  const std::vector<std::size_t> tree_sent = {3, 1, 1, 2, 1};  // rank 0: down twice, unfold
  const std::vector<std::size_t> tree_received = {3, 1, 1, 2, 1};
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    EXPECT_EQ(tree.lists[rank].sent.size(), tree_sent[rank]) << rank;
    EXPECT_EQ(tree.lists[rank].received.size(), tree_received[rank]) << rank;
  }

  options.algorithm = "topk";
  const Outcome all = all_reduce(problem_of(DataType::kFloat32, rows, options));
  EXPECT_EQ(all.lists[0].sent, Counts({2, 3, 5}));      // (0,1); (0,1,2); all, to rank 1
  EXPECT_EQ(all.lists[0].received, Counts({1, 1, 2}));  // 1; 2; (3,4)
  EXPECT_EQ(all.lists[1].sent, Counts({1}));
  EXPECT_EQ(all.lists[1].received, Counts({5}));
  EXPECT_EQ(all.lists[2].sent, Counts({1, 3}));
  EXPECT_EQ(all.lists[2].received, Counts({2, 2}));
  EXPECT_EQ(all.lists[4].sent, Counts({1, 2}));
  EXPECT_EQ(all.lists[4].received, Counts({1, 3}));
}

}  // namespace
}  // namespace gtopk::reference
