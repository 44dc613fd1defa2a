// Sparse, algorithms: the four-rank case in which the published implementation loses mass.
// Worked by hand, so that it checks the reference, too.
#include <gtest/gtest.h>

#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using support::Tensor;

// Ranks hold (A,1) (B,2) (A,3) (C,.5) with k = 1. The left pair keeps B = 2 and drops A = 1, the
// right pair keeps A = 3 and drops C = 0.5, the root keeps A = 3 and drops B = 2.
TEST(PublishedCase, DeliversTheLargestPartialSumAndLosesNoMass) {
  for (const char* const algorithm : {"gtopk", "gtopk-tree", "rs-ag"}) {
    for (const PutBack put_back : {PutBack::kOwn, PutBack::kMerged}) {
      const Problem problem =
          reference::published_counterexample(DataType::kFloat32, put_back, algorithm);
      InprocRanks ranks(4);
      std::vector<Tensor> tensors;
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        tensors.push_back(support::tensor_of(problem, rank));
      }
      const auto endings = ranks.run(
          [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
      const auto residual = [&](std::uint32_t rank) {
        std::vector<double> values;
        for (std::uint64_t i = 0; i < 3; ++i) {
          values.push_back(reference::load(DataType::kFloat32, *tensors[rank].residual, i));
        }
        return values;
      };
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
        EXPECT_EQ(reference::load(DataType::kFloat32, tensors[rank].values, 0), 3.0);
        EXPECT_EQ(reference::load(DataType::kFloat32, tensors[rank].values, 1), 0.0);
        EXPECT_EQ(reference::load(DataType::kFloat32, tensors[rank].values, 2), 0.0);
      }
      using Row = std::vector<double>;
      if (put_back == PutBack::kOwn) {
        // A's dropped partial sum stays at the node's lowest rank; B and C never left.
        EXPECT_EQ(residual(0), (Row{1, 0, 0}));
        EXPECT_EQ(residual(1), (Row{0, 2, 0}));
        EXPECT_EQ(residual(2), (Row{0, 0, 0}));
        EXPECT_EQ(residual(3), (Row{0, 0, 0.5}));
      } else {
        // All of it goes to the lowest rank of the node that dropped it.
        EXPECT_EQ(residual(0), (Row{1, 2, 0}));
        EXPECT_EQ(residual(1), (Row{0, 0, 0}));
        EXPECT_EQ(residual(2), (Row{0, 0, 0.5}));
        EXPECT_EQ(residual(3), (Row{0, 0, 0}));
      }
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

TEST(PublishedCase, TopkDeliversTheExactSum) {
  const Problem problem =
      reference::published_counterexample(DataType::kFloat64, PutBack::kOwn, "topk");
  InprocRanks ranks(4);
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  const auto endings = ranks.run(
      [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
    EXPECT_EQ(reference::load(DataType::kFloat64, tensors[rank].values, 0), 4.0);
    EXPECT_EQ(reference::load(DataType::kFloat64, tensors[rank].values, 1), 2.0);
    EXPECT_EQ(reference::load(DataType::kFloat64, tensors[rank].values, 2), 0.5);
    for (std::uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(reference::load(DataType::kFloat64, *tensors[rank].residual, i), 0.0);
    }
  }
}

}  // namespace
}  // namespace gtopk
