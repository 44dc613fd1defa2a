// Test support: the generator replays from its seed and reaches the cases that it exists for.
#include "tests/support/cases.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace gtopk::reference {
namespace {

TEST(Cases, TheSeedAloneReplaysACase) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Case one = random_case(seed, DataType::kFloat16, 5, "gtopk");
    const Case other = random_case(seed, DataType::kFloat16, 5, "gtopk");
    EXPECT_EQ(one.description, other.description);
    for (std::size_t rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(one.problem.ranks[rank].gradient, other.problem.ranks[rank].gradient);
      EXPECT_EQ(one.problem.ranks[rank].residual, other.problem.ranks[rank].residual);
    }
  }
}

// What the tests run over is everything that there is.
TEST(Cases, ComeInEveryAlgorithmAndFloatingTypeThatThereIs) {
  EXPECT_THAT(
      algorithms(),
      ::testing::IsSupersetOf({"gtopk", "gtopk-tree", "topk", "dense", "rs-ag", "exact",
                               "hierarchical", "gtopk-placed", "sketch", "random-k", "true-topk"}));
  std::vector<DataType> floating = named_values<DataType>();
  std::erase_if(floating, [](DataType type) { return !is_floating(type); });
  EXPECT_EQ(std::vector(std::begin(kFloatingTypes), std::end(kFloatingTypes)), floating);
}

struct Seen {
  int one_element = 0;
  int k_beyond_d = 0;
  int zero_rank_beside_others = 0;
  int fewer_non_zeros_than_k = 0;
  int did_not_happen = 0;
  int not_finite_input = 0;
  int negative_zero = 0;
  int subnormal_acc = 0;
  int no_residual = 0;
  int dropped_on_the_way = 0;
  int ties_at_the_edge = 0;
  int cancelled = 0;
};

void look_at(const Problem& problem, Seen& seen) {
  const DataType acc_type = accumulation_type(problem.type);
  const double least_normal = smallest(acc_type) / epsilon(acc_type);
  const Outcome outcome = all_reduce(problem);
  seen.one_element += problem.d == 1 ? 1 : 0;
  seen.k_beyond_d += problem.options.k >= problem.d ? 1 : 0;
  seen.did_not_happen += outcome.happened ? 0 : 1;
  bool finite = true;
  bool negative_zero = false;
  bool subnormal = false;
  bool tie = false;
  std::size_t empty = 0;
  std::vector<double> sums(problem.d);
  std::vector<double> sizes(problem.d);
  for (std::uint32_t rank = 0; rank < problem.ranks.size(); ++rank) {
    const Bytes acc = accumulated(problem, rank);
    std::vector<double> order;
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      const double value = load(acc_type, acc, i);
      const double gradient = load(problem.type, problem.ranks[rank].gradient, i);
      finite = finite && std::isfinite(value);
      negative_zero = negative_zero || (gradient == 0.0 && std::signbit(gradient));
      subnormal = subnormal || (value != 0.0 && std::fabs(value) < least_normal);
      if (value != 0.0) {
        order.push_back(std::fabs(value));
      }
      sums[i] += value;
      sizes[i] += std::fabs(value);
    }
    std::sort(order.rbegin(), order.rend());
    const std::uint64_t k = problem.options.k;
    empty += order.empty() ? 1U : 0U;
    seen.fewer_non_zeros_than_k += order.size() < std::min(k, problem.d) ? 1 : 0;
    tie = tie || (order.size() > k && order[k - 1] == order[k]);
    seen.no_residual += problem.ranks[rank].residual ? 0 : 1;
  }
  for (std::uint64_t i = 0; i < problem.d; ++i) {
    if (sums[i] == 0.0 && sizes[i] != 0.0) {
      ++seen.cancelled;
      break;
    }
  }
  seen.not_finite_input += finite ? 0 : 1;
  seen.negative_zero += negative_zero ? 1 : 0;
  seen.subnormal_acc += subnormal ? 1 : 0;
  seen.ties_at_the_edge += tie ? 1 : 0;
  seen.zero_rank_beside_others += empty != 0 && empty != problem.ranks.size() ? 1 : 0;
  std::uint64_t selected = 0;
  for (const std::uint64_t count : outcome.selected) {
    selected += count;
  }
  seen.dropped_on_the_way += outcome.delivered.size() < selected ? 1 : 0;
}

TEST(Cases, EverythingThatBreaksImplementationsComesUpOften) {
  Seen seen;
  std::uint64_t seed = 1;
  for (const DataType type : kFloatingTypes) {
    for (const std::uint32_t ranks : kRankCounts) {
      for (int i = 0; i < 25; ++i) {
        look_at(random_case(seed++, type, ranks, "gtopk").problem, seen);
      }
    }
  }
  EXPECT_GE(seen.one_element, 30);
  EXPECT_GE(seen.k_beyond_d, 100);
  EXPECT_GE(seen.zero_rank_beside_others, 50);
  EXPECT_GE(seen.fewer_non_zeros_than_k, 100);
  EXPECT_GE(seen.did_not_happen, 50);
  EXPECT_GE(seen.not_finite_input, 50);
  EXPECT_GE(seen.negative_zero, 50);
  EXPECT_GE(seen.subnormal_acc, 50);
  EXPECT_GE(seen.no_residual, 100);
  EXPECT_GE(seen.dropped_on_the_way, 100);
  EXPECT_GE(seen.ties_at_the_edge, 100);
  EXPECT_GE(seen.cancelled, 50);
}

}  // namespace
}  // namespace gtopk::reference
