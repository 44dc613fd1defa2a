// Sparse, algorithms: ranks of which only some know the costs of messages, or know newer ones,
// find out at once, and measure again; what is called behind a new measurement waits for it.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "src/engine/group.hpp"
#include "src/gtopk/plan/planner.hpp"
#include "tests/gtopk/algorithms/noise.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using sparse::Planner;
using support::InprocRanks;
using support::network;
using support::SharedEnding;
using support::Tensor;

/// Nanoseconds.
constexpr Costs kCosts{.within = {1e3, 1},
                       .between = {50e3, 8},
                       .select = 1,
                       .code = 1,
                       .merge = 1,
                       .unite = 1,
                       .add = 1,
                       .commit = 1};

Problem problem_of(std::uint32_t ranks) {
  return sparse::testing::noise(ranks, 300, 20, "auto", DataType::kFloat32, 1);
}

/// All three ranks run `auto`, or only plan it; all fail, or none.
void expect_errors_of_costs(InprocRanks& ranks, bool only_plan, bool error) {
  const Problem problem = problem_of(3);
  std::vector<Tensor> tensors;
  std::vector<PlanReport> reports(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return only_plan ? gtopk::plan(300, DataType::kFloat32, {.k = 20}, reports[rank])
                     : support::sparse_all_reduce(problem, tensors[rank]);
  });
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->ended);
    ASSERT_EQ(ending->error.has_value(), error) << ending->text();
    if (error) {
      ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
      ASSERT_NE(ending->text().find("costs_of="), std::string::npos) << ending->text();
    }
  }
}

// How that comes about: a rank has measured and fails in the rest of the same operation, and its
// abort overtakes the last message of measuring elsewhere.
TEST(KnownCosts, OfSomeRanksOnly_AreOneErrorAndGroupMeasuresAgain) {
  for (const bool only_plan : {false, true}) {
    for (std::uint32_t knowing = 1; knowing < 7; ++knowing) {
      const bool old = only_plan == (knowing % 2 == 0);  // the others know older costs
      SCOPED_TRACE(fmt::format("knowing {:b}, plan {}, old {}", knowing, only_plan, old));
      InprocRanks ranks(3, network(knowing));
      ASSERT_EQ(support::group_works(ranks), "");  // collective #1
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        auto& planner = ranks.group(rank)->per_group_state.of<Planner>();
        if ((knowing >> rank & 1U) != 0) {
          planner.costs = kCosts;
          planner.measured_by = 1;
        } else if (old) {
          planner.costs = kCosts;
        }
      }
      expect_errors_of_costs(ranks, only_plan, true);
      expect_errors_of_costs(ranks, only_plan, false);
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        ASSERT_EQ(ranks.group(rank)->per_group_state.of<Planner>().measured_by, 3U);
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

TEST(KnownCosts, ThatAreMeasuredAnewAreAwaitedByWhatIsCalledBehind) {
  InprocRanks ranks(2, network(2));
  const Problem problem = problem_of(2);
  std::vector<Tensor> tensors = {support::tensor_of(problem, 0), support::tensor_of(problem, 1)};
  std::vector<PlanReport> reports(2);
  const auto plan = [&](std::uint32_t rank) {
    return ranks.submit(rank, gtopk::plan(300, DataType::kFloat32, {.k = 20}, reports[rank], true));
  };
  const auto reduce = [&](std::uint32_t rank) {
    return ranks.submit(rank, support::sparse_all_reduce(problem, tensors[rank]));
  };
  // Two plans, so that the wait is for both.
  std::vector<SharedEnding> endings = {reduce(0), plan(0), plan(0), reduce(0),
                                       reduce(1), plan(1), plan(1)};
  ranks.run_until([&] { return endings.back()->ended; });
  endings.push_back(reduce(1));
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.group(rank)->per_group_state.of<PlanReport>().measured_by, 3U);
  }
  EXPECT_TRUE(ranks.close().empty());
}

}  // namespace
}  // namespace gtopk
