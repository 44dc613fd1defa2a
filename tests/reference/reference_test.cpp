// Test support: properties of the reference that hold in every random case.
#include "tests/reference/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/cases.hpp"

namespace gtopk::reference {
namespace {

/// Calls check(case) for every type and number of ranks, `seeds` times each.
template <class Check>
void for_random_cases(const std::vector<std::string>& algorithms, std::uint64_t seeds,
                      Check check) {
  std::uint64_t seed = 1;
  for (const std::string& algorithm : algorithms) {
    for (const DataType type : kFloatingTypes) {
      for (const std::uint32_t ranks : kRankCounts) {
        for (std::uint64_t i = 0; i < seeds; ++i) {
          const Case made = random_case(seed++, type, ranks, algorithm);
          SCOPED_TRACE(made.description);
          check(made.problem);
          if (testing::Test::HasFailure()) {
            return;
          }
        }
      }
    }
  }
}

const std::vector<std::string> kAll = algorithms();

bool all_nan(DataType type, const Bytes& bytes) {
  for (std::uint64_t i = 0; i < bytes.size() / size_of(type); ++i) {
    if (!std::isnan(load(type, bytes, i))) {
      return false;
    }
  }
  return true;
}

TEST(Reference, MassIsConservedInEveryCase) {
  for_random_cases(kAll, 7, [](Problem problem) {
    const DataType acc_type = accumulation_type(problem.type);
    for (Input& input : problem.ranks) {
      if (!input.residual) {
        input.residual = zeros(acc_type, problem.d);  // else what stays is discarded
      }
    }
    const Outcome outcome = all_reduce(problem);
    if (!outcome.happened) {
      return;
    }
    std::vector<Bytes> accs;
    const auto ranks = static_cast<std::uint32_t>(problem.ranks.size());
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      accs.push_back(accumulated(problem, rank));
    }
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      long double brought = 0;
      long double size = 0;
      long double kept = 0;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const long double acc = load(acc_type, accs[rank], i);
        brought += acc;
        size += std::fabs(acc);
        kept += load(acc_type, *outcome.residuals[rank], i);
      }
      if (!std::isfinite(kept)) {
        continue;  // docs/algorithms.md, "what cannot be undone"
      }
      const auto found = outcome.delivered.find(i);
      const long double delivered = found == outcome.delivered.end() ? 0.0 : found->second;
      const long double rounding = 2.0L * ranks * epsilon(acc_type) * size;
      ASSERT_LE(std::fabs(brought - delivered - kept), rounding) << "index " << i;
      // The tensor is that sum, divided and rounded.
      const double divisor = problem.options.op == ReduceOp::kAvg ? ranks : 1.0;
      const double written = load(problem.type, outcome.tensor, i);
      const double exact = static_cast<double>(delivered) / divisor;
      ASSERT_LE(std::fabs(written - exact),
                epsilon(problem.type) * std::fabs(exact) + smallest(problem.type));
    }
  });
}

TEST(Reference, TheTreeAndRecursiveDoublingGiveTheSameBits) {
  for_random_cases({"gtopk"}, 10, [](Problem problem) {
    const Outcome doubling = all_reduce(problem);
    problem.options.algorithm = "gtopk-tree";
    const Outcome tree = all_reduce(problem);
    ASSERT_EQ(tree.tensor, doubling.tensor);
    ASSERT_EQ(tree.residuals, doubling.residuals);
  });
}

// A second formulation, in double and per rank: every rank holds a list and exchanges it with its
// partner, as `gtopk` does on the wire. It covers only the lists.
using List = std::map<std::uint64_t, float>;

List merged(const List& left, const List& right, std::uint64_t k) {
  List sums = left;
  for (const auto& [index, value] : right) {
    sums[index] += value;
  }
  std::vector<std::pair<float, std::uint64_t>> order;
  for (const auto& [index, value] : sums) {
    if (value != 0.0F) {
      order.emplace_back(-std::fabs(value), index);
    }
  }
  std::sort(order.begin(), order.end());
  if (order.size() > k) {
    order.resize(k);
  }
  List kept;
  for (const auto& [magnitude, index] : order) {
    kept[index] = sums[index];
  }
  return kept;
}

TEST(Reference, RecursiveDoubling_ReachesSameResultOnEveryLeaf) {
  for_random_cases({"gtopk"}, 5, [](const Problem& problem) {
    if (problem.type != DataType::kFloat32) {
      return;
    }
    const Outcome outcome = all_reduce(problem);
    if (!outcome.happened) {
      return;
    }
    const auto ranks = static_cast<std::uint32_t>(problem.ranks.size());
    std::vector<List> lists(ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const Bytes acc = accumulated(problem, rank);
      List all;
      for (std::uint64_t i = 0; i < problem.d; ++i) {
        all[i] = static_cast<float>(load(DataType::kFloat32, acc, i));
      }
      lists[rank] = merged(all, {}, problem.options.k);
    }
    std::uint32_t leaves = 1;
    while (leaves * 2 <= ranks) {
      leaves *= 2;
    }
    const std::uint32_t folded = ranks - leaves;
    std::vector<std::uint32_t> speakers;  // by leaf
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank < 2 * folded && rank % 2 == 1) {
        lists[rank - 1] = merged(lists[rank - 1], lists[rank], problem.options.k);
      } else {
        speakers.push_back(rank);
      }
    }
    ASSERT_EQ(speakers.size(), leaves);
    for (std::uint32_t distance = 1; distance < leaves; distance *= 2) {
      std::vector<List> next = lists;
      for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
        next[speakers[leaf]] =
            merged(lists[speakers[leaf]], lists[speakers[leaf ^ distance]], problem.options.k);
      }
      lists = next;
    }
    for (const std::uint32_t speaker : speakers) {
      const std::map<std::uint64_t, double> result(lists[speaker].begin(), lists[speaker].end());
      ASSERT_EQ(result, outcome.delivered) << "rank " << speaker;
    }
  });
}

TEST(Reference, StepThatDidNotHappen_LeavesNanAndOldResiduals) {
  std::size_t seen = 0;
  for_random_cases(kAll, 7, [&seen](const Problem& problem) {
    const Outcome outcome = all_reduce(problem);
    if (outcome.happened) {
      return;
    }
    ++seen;
    ASSERT_TRUE(all_nan(problem.type, outcome.tensor));
    for (std::size_t rank = 0; rank < problem.ranks.size(); ++rank) {
      ASSERT_EQ(outcome.residuals[rank], problem.ranks[rank].residual);
    }
  });
  EXPECT_GT(seen, 50U);
}

TEST(Reference, AMissingResidualIsOneOfZerosThatNobodySees) {
  for_random_cases(kAll, 3, [](Problem problem) {
    const Outcome before = all_reduce(problem);
    for (Input& input : problem.ranks) {
      if (!input.residual) {
        input.residual = zeros(accumulation_type(problem.type), problem.d);
      }
    }
    const Outcome with_zeros = all_reduce(problem);
    ASSERT_EQ(with_zeros.tensor, before.tensor);
    for (std::size_t rank = 0; rank < problem.ranks.size(); ++rank) {
      if (!before.residuals[rank]) {
        continue;
      }
      ASSERT_EQ(with_zeros.residuals[rank], before.residuals[rank]);
    }
  });
}

TEST(Reference, PutBackAndOpDoNotChooseWhatIsDelivered) {
  for_random_cases({"gtopk", "topk"}, 3, [](Problem problem) {
    problem.options.put_back = PutBack::kOwn;
    problem.options.op = ReduceOp::kAvg;
    const Outcome own = all_reduce(problem);
    problem.options.put_back = PutBack::kMerged;
    ASSERT_EQ(all_reduce(problem).tensor, own.tensor);
    problem.options.op = ReduceOp::kSum;
    const Outcome sum = all_reduce(problem);
    if (!own.happened || !sum.happened) {
      return;
    }
    ASSERT_EQ(sum.delivered, own.delivered);
  });
}

TEST(Reference, TheFirstTwoRanksMayChangePlaces) {
  for_random_cases({"gtopk", "topk"}, 3, [](const Problem& problem) {
    if (problem.ranks.size() < 2) {
      return;
    }
    Problem changed = problem;
    changed.ranks[0] = problem.ranks[1];  // a fold pair, or the first two leaves
    changed.ranks[1] = problem.ranks[0];
    ASSERT_EQ(all_reduce(changed).tensor, all_reduce(problem).tensor);
  });
}

TEST(Reference, OneRankGetsTheFirstKOfAccAndKeepsTheRest) {
  std::uint64_t seed = 1;
  for (const DataType type : kFloatingTypes) {
    for (int i = 0; i < 50; ++i) {
      const Case made = random_case(seed++, type, 1, "gtopk");
      SCOPED_TRACE(made.description);
      const Outcome outcome = all_reduce(made.problem);
      if (!outcome.happened || !outcome.residuals[0]) {
        continue;
      }
      const DataType acc_type = accumulation_type(type);
      const Bytes acc = accumulated(made.problem, 0);
      double least_delivered = std::numeric_limits<double>::infinity();
      double most_kept = 0.0;
      for (std::uint64_t at = 0; at < made.problem.d; ++at) {
        const double value = load(acc_type, acc, at);
        const double kept = load(acc_type, *outcome.residuals[0], at);
        if (outcome.delivered.contains(at)) {
          ASSERT_EQ(outcome.delivered.at(at), value);
          ASSERT_EQ(kept, 0.0);
          least_delivered = std::min(least_delivered, std::fabs(value));
        } else {
          ASSERT_EQ(kept, value);
          most_kept = std::max(most_kept, std::fabs(value));
        }
      }
      ASSERT_LE(most_kept, least_delivered);
      ASSERT_LE(outcome.delivered.size(), made.problem.options.k);
    }
  }
}

}  // namespace
}  // namespace gtopk::reference
