// Sparse, algorithms: the algorithms by regions, in cases worked by hand, so that they check
// the reference, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using support::Tensor;

using Entries = std::map<std::uint64_t, double>;

/// The delivered result, and each rank's non-zero residuals.
struct Result {
  Entries tensor;
  std::vector<Entries> residuals;
  bool operator==(const Result&) const = default;
};
// GoogleTest finds it by this name.
void PrintTo(const Result& result, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << testing::PrintToString(result.tensor) << " " << testing::PrintToString(result.residuals);
}

Entries non_zeros(const reference::Bytes& bytes) {
  Entries entries;
  for (std::uint64_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    const double value = reference::load(DataType::kFloat32, bytes, i);
    if (value != 0) {
      entries[i] = value;
    }
  }
  return entries;
}

/// The all-reduce of these gradients, with zero residuals.
Result all_reduce(const std::vector<Entries>& rows, std::uint64_t d, SparseOptions options) {
  Problem problem;
  problem.d = d;
  problem.options = std::move(options);
  for (const Entries& row : rows) {
    reference::Input input{reference::zeros(problem.type, d), reference::zeros(problem.type, d)};
    for (const auto& [index, value] : row) {
      reference::store(problem.type, input.gradient, index, value);
    }
    problem.ranks.push_back(std::move(input));
  }
  InprocRanks ranks(static_cast<std::uint32_t>(rows.size()));
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  const auto endings = ranks.run(
      [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
  Result result{non_zeros(tensors.front().values), {}};
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(endings[rank]->good()) << endings[rank]->text();
    EXPECT_EQ(non_zeros(tensors[rank].values), result.tensor) << "rank " << rank;
    result.residuals.push_back(non_zeros(*tensors[rank].residual));
  }
  return result;
}

constexpr PutBack kBoth[] = {PutBack::kOwn, PutBack::kMerged};

// Rank 0's second half begins at 1, rank 1's at 3, so the cut is at 2, and each region has one
// entry. gTop-k would keep both of rank 0's, and halves of equal length would leave the upper one
// empty.
TEST(RsAg, GivesEachRegionItsShareOfK) {
  const std::vector<Entries> rows = {{{0, 5}, {1, 4}}, {{2, 2}, {3, 1}}};
  for (const PutBack put_back : kBoth) {
    EXPECT_EQ(all_reduce(rows, 8, {.k = 2, .algorithm = "rs-ag", .put_back = put_back}),
              (Result{{{0, 5}, {2, 2}}, {{{1, 4}}, {{3, 1}}}}));
    EXPECT_EQ(all_reduce(rows, 8, {.k = 2, .algorithm = "gtopk", .put_back = put_back}).tensor,
              (Entries{{0, 5}, {1, 4}}));
  }
}

// The cut is at 2, and leaf 1 reduces the upper region from 3:3 and 2:4: what it drops is rank 0's
// entry, and stays with rank 1, which merged. In gTop-k it would stay with the lowest rank.
TEST(RsAg, LeavesADroppedSumWithTheRankThatMerged) {
  const std::vector<Entries> rows = {{{0, 9}, {3, 3}}, {{0, 9}, {2, 4}}};
  const auto residuals = [&](const char* algorithm, PutBack put_back) {
    const Result result =
        all_reduce(rows, 4, {.k = 2, .algorithm = algorithm, .put_back = put_back});
    EXPECT_EQ(result.tensor, (Entries{{0, 18}, {2, 4}}));
    return result.residuals;
  };
  EXPECT_EQ(residuals("rs-ag", PutBack::kMerged), (std::vector<Entries>{{}, {{3, 3}}}));
  EXPECT_EQ(residuals("rs-ag", PutBack::kOwn), (std::vector<Entries>{{{3, 3}}, {}}));
  EXPECT_EQ(residuals("gtopk", PutBack::kMerged), (std::vector<Entries>{{{3, 3}}, {}}));
}

// With k = 3 and four leaves there are two regions, of one entry and of two: the first round
// halves, in the second leaves 0 and 2 reduce the lower region and 1 and 3 the upper one.
TEST(RsAg, HasNoMoreRegionsThanEntries) {
  const std::vector<Entries> rows = {
      {{0, 1}, {4, 8}, {5, 7}}, {{1, 2}, {4, 8}, {6, 5}}, {{2, 3}, {4, 8}, {7, 6}}, {}};
  // The lists' middles are 4, 4, 4 and, without entries, 4.
  const Result result =
      all_reduce(rows, 8, {.k = 3, .algorithm = "rs-ag", .put_back = PutBack::kMerged});
  EXPECT_EQ(result.tensor, (Entries{{2, 3}, {4, 24}, {5, 7}}));
  // Leaf 0 drops 0:1 in its first round and 1:2 in the second; leaf 1 drops 6:5, then 7:6.
  EXPECT_EQ(result.residuals, (std::vector<Entries>{{{0, 1}, {1, 2}}, {{6, 5}, {7, 6}}, {}, {}}));
}

// Rank 1's entries are few and high: cuts by them alone would leave a region less capacity than it
// has entries.
TEST(RsAg, DeliversAllWhereKIsD) {
  for (const std::uint32_t size : {2U, 3U, 4U, 7U, 8U}) {
    std::vector<Entries> rows(size);
    Entries sums;
    for (std::uint64_t i = 0; i < 50; ++i) {
      sums[i] = rows[0][i] = static_cast<double>(i + 1);
    }
    for (std::uint64_t i = 45; i < 50; ++i) {
      sums[i] += rows[1][i] = 1;
    }
    const Result result = all_reduce(rows, 50, {.k = 50, .algorithm = "rs-ag"});
    EXPECT_EQ(result, (Result{sums, std::vector<Entries>(size)}));
  }
}

// The case in which gTop-k delivers A = 3: the sum is A = 4, and this delivers 4.
TEST(Exact, DeliversTheFirstKOfTheExactSum) {
  for (const PutBack put_back : kBoth) {
    const std::vector<Entries> rows = {{{0, 1}}, {{1, 2}}, {{0, 3}}, {{2, 0.5}}};
    const Result result = all_reduce(rows, 3, {.k = 1, .algorithm = "exact", .put_back = put_back});
    EXPECT_EQ(result.tensor, (Entries{{0, 4}}));
    // Borders are the averages of where the lists' quarters begin, here of 0, 1, 0 and 2: all three
    // cuts are at 0. So region 3 is everything, and rank 3 reduces it.
    EXPECT_EQ(result.residuals, put_back == PutBack::kOwn
                                    ? (std::vector<Entries>{{}, {{1, 2}}, {}, {{2, 0.5}}})
                                    : (std::vector<Entries>{{}, {}, {}, {{1, 2}, {2, 0.5}}}));
  }
}

// No rank has Y among its own largest, and gTop-k drops it at the first node.
TEST(Exact, FindsWhatIsLargeInTheSumAlone) {
  const std::vector<Entries> rows = {{{0, 1}}, {{1, 0.9}}, {{2, 1}}, {{1, 0.9}}};
  EXPECT_EQ(all_reduce(rows, 3, {.k = 1, .algorithm = "exact"}).tensor,
            (Entries{{1, 0.9F + 0.9F}}));
  EXPECT_EQ(all_reduce(rows, 3, {.k = 1, .algorithm = "gtopk"}).tensor, (Entries{{0, 1}}));
}

// 16 entries of one magnitude in four regions: the lowest indices come first, whatever the region.
TEST(Exact, BreaksTiesByIndexAcrossRegions) {
  std::vector<Entries> rows(4);
  for (std::uint64_t i = 0; i < 16; ++i) {
    rows[i / 4][i] = i % 2 == 0 ? 1 : -1;
  }
  for (std::uint64_t k = 4; k <= 16; ++k) {
    Entries first;
    for (std::uint64_t i = 0; i < k; ++i) {
      first[i] = i % 2 == 0 ? 1 : -1;
    }
    EXPECT_EQ(all_reduce(rows, 16, {.k = k, .algorithm = "exact"}).tensor, first) << k;
  }
}

// It delivers the first k of what topk delivers, with the same bits, and all of it if that is at
// most k.
TEST(Exact, DeliversTheLargestOfTopksSums) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::uint32_t size = reference::one_of(reference::kRankCounts, seed);
    Problem problem = reference::random_case(seed, DataType::kFloat32, size, "topk").problem;
    const reference::Outcome all = reference::all_reduce(problem);
    problem.options.algorithm = "exact";
    InprocRanks ranks(size, support::network(seed));
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
    const reference::Outcome some = reference::all_reduce(problem);
    if (!all.happened || !some.happened) {
      continue;
    }
    std::vector<std::pair<double, std::uint64_t>> order;
    for (const auto& [index, value] : all.delivered) {
      if (value != 0) {
        order.emplace_back(-std::abs(value), index);
      }
    }
    std::ranges::sort(order);
    order.resize(std::min<std::size_t>(order.size(), problem.options.k));
    Entries expected;
    for (const auto& [magnitude, index] : order) {
      expected[index] = all.delivered.at(index);
    }
    EXPECT_EQ(some.delivered, expected) << seed;
  }
}

}  // namespace
}  // namespace gtopk
