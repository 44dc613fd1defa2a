// Sparse, algorithms: `auto` equals the algorithm it chooses, bit for bit; all ranks choose
// the same one, also when many operations wait for the first costs; and mismatches are reported as
// usual.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "gtopk/collectives.hpp"
#include "src/engine/group.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/plan/planner.hpp"
#include "tests/gtopk/algorithms/noise.hpp"
#include "tests/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using sparse::Planner;
using support::InprocRanks;
using support::network;
using support::SharedEnding;
using support::Tensor;

/// 50 us and 1 Gbit/s; inside a host 1 us and 8 Gbit/s; 1 ns for each computation.
constexpr Costs kEthernet{.within = {1e3, 1},
                          .between = {50e3, 8},
                          .select = 1,
                          .code = 1,
                          .merge = 1,
                          .unite = 1,
                          .add = 1,
                          .commit = 1};

void give_costs(InprocRanks& ranks, const Costs& costs) {
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    ranks.group(rank)->per_group_state.of<Planner>().costs = costs;
  }
}

const PlanReport& last_plan(InprocRanks& ranks, std::uint32_t rank) {
  return ranks.group(rank)->per_group_state.of<PlanReport>();
}

Problem random_problem(std::uint32_t ranks, std::uint64_t d, std::uint64_t k, std::uint64_t seed) {
  return sparse::testing::noise(ranks, d, k, "auto", DataType::kFloat32, seed);
}

struct Ran {
  std::vector<Tensor> tensors;
  std::string chosen;
};

/// Runs the problem with `auto`; all ranks must choose the same algorithm.
Ran run_automatically(InprocRanks& ranks, Problem problem) {
  problem.options.algorithm = "auto";
  Ran ran;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    ran.tensors.push_back(support::tensor_of(problem, rank));
  }
  const auto endings = ranks.run(
      [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, ran.tensors[rank]); });
  for (const SharedEnding& ending : endings) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  ran.chosen = last_plan(ranks, 0).algorithm;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(last_plan(ranks, rank).algorithm, ran.chosen);
    EXPECT_EQ(last_plan(ranks, rank).reason, last_plan(ranks, 0).reason);
  }
  return ran;
}

/// Every rank has what the reference computes with the chosen algorithm.
void expect_outcome(Problem problem, const Ran& ran) {
  problem.options.algorithm = ran.chosen;
  const reference::Outcome expected = reference::all_reduce(problem);
  for (std::size_t rank = 0; rank < ran.tensors.size(); ++rank) {
    EXPECT_EQ(reference::difference(problem.type, expected.tensor, ran.tensors[rank].values), "");
    EXPECT_EQ(reference::difference(problem.type, expected.residuals[rank].value(),
                                    ran.tensors[rank].residual.value()),
              "");
  }
}

std::vector<std::uint32_t> counts_of_ranks() {
  return support::kSanitized ? std::vector{1U, 3U} : std::vector{1U, 2U, 3U, 4U, 5U, 6U, 8U, 16U};
}

class Auto : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Auto, IsTheAlgorithmThatItChoosesWithCostsMeasuredHere) {
  const std::uint32_t size = GetParam();
  InprocRanks ranks(size, network(size));
  for (const auto semantics : reference::named_values<Semantics>()) {
    Problem problem = random_problem(size, 300, 20, size);
    problem.options.semantics = semantics;
    expect_outcome(problem, run_automatically(ranks, problem));
  }
  const auto& costs = ranks.group(0)->per_group_state.of<Planner>();
  EXPECT_EQ(costs.measured_by, 1U);
  EXPECT_GT(costs.costs->select, 0);
  EXPECT_GT(costs.costs->merge, 0);
  EXPECT_TRUE(ranks.close().empty());
}

TEST(AutoChoice, GoesByCostsAndSemantics) {
  constexpr std::uint32_t size = 8;
  InprocRanks ranks(size, network(size), support::hosts_of(size, 1));
  give_costs(ranks, kEthernet);
  const auto chosen = [&](std::uint64_t d, std::uint64_t k, Semantics semantics) {
    Problem problem = random_problem(size, d, k, k);
    problem.options.semantics = semantics;
    problem.hosts = ranks.hosts();
    const Ran ran = run_automatically(ranks, problem);
    expect_outcome(problem, ran);
    return ran.chosen;
  };
  EXPECT_EQ(chosen(100'000, 10, Semantics::kAny), "gtopk");
  EXPECT_EQ(chosen(100'000, 10, Semantics::kExactSum), "topk");
  EXPECT_EQ(chosen(100'000, 20'000, Semantics::kAny), "rs-ag");
  EXPECT_EQ(chosen(100'000, 5'000, Semantics::kGtopk), "gtopk");
  EXPECT_EQ(chosen(100'000, 100'000, Semantics::kAny), "dense");
  EXPECT_EQ(chosen(300, 300, Semantics::kExactSum), "dense");
  EXPECT_TRUE(ranks.close().empty());
}

TEST(AutoChoice, MeanOverContributors_ConsidersOnlyTopkAndExact) {
  constexpr std::uint32_t size = 5;
  InprocRanks ranks(size, network(size), support::hosts_of(size, 1));
  give_costs(ranks, kEthernet);
  const auto ran = [&](std::uint64_t d, std::uint64_t k) {
    Problem problem = random_problem(size, d, k, k);
    problem.options.op = ReduceOp::kAvg;
    problem.options.mean = MeanOver::kContributors;
    problem.hosts = ranks.hosts();
    const Ran ran = run_automatically(ranks, problem);
    expect_outcome(problem, ran);
    EXPECT_EQ(last_plan(ranks, 0).predictions.size(), 2U);
    return ran.chosen;
  };
  EXPECT_EQ(ran(100'000, 10), "topk");
  EXPECT_EQ(ran(100'000, 20'000), "exact");
  EXPECT_TRUE(ranks.close().empty());
}

TEST(AutoChoice, GoesByWhichRanksShareAHost) {
  constexpr std::uint32_t size = 8;
  const auto chosen = [&](std::vector<std::string> hosts, std::uint64_t k, Semantics semantics) {
    InprocRanks ranks(size, network(size), hosts);
    give_costs(ranks, kEthernet);
    Problem problem = random_problem(size, 40'000, k, k);
    problem.options.semantics = semantics;
    problem.hosts = std::move(hosts);
    const Ran ran = run_automatically(ranks, problem);
    expect_outcome(problem, ran);
    EXPECT_NE(last_plan(ranks, 0).reason.find("bytes over a host's link"), std::string::npos)
        << last_plan(ranks, 0).reason;
    EXPECT_TRUE(ranks.close().empty());
    return ran.chosen;
  };
  // One list per host instead of four; inside hosts up a tree, with fewer steps than one leader.
  EXPECT_EQ(chosen(support::hosts_of(size, 4), 4'000, Semantics::kGtopk), "gtopk-placed");
  // With two ranks per host both do the same, and the first in the registry wins.
  EXPECT_EQ(chosen(support::hosts_of(size, 2), 4'000, Semantics::kGtopk), "hierarchical");
  const std::vector<std::string> in_turn = {"a", "b", "a", "b", "a", "b", "a", "b"};
  EXPECT_EQ(chosen(in_turn, 4'000, Semantics::kGtopk), "gtopk-placed");
  // With a single entry, what a host's ranks send at once is hardly more than what one sends.
  EXPECT_EQ(chosen(support::hosts_of(size, 4), 1, Semantics::kGtopk), "gtopk");
}

TEST_P(Auto, ManyAtOnceWaitForOneSetOfCosts) {
  const std::uint32_t size = GetParam();
  InprocRanks ranks(size, network(size + 1));
  std::vector<Problem> problems;
  for (std::uint64_t i = 0; i < 9; ++i) {
    // Long and short lists, `auto` and a named algorithm.
    problems.push_back(i % 3 == 0 ? random_problem(size, 20'000, 5'000, i)
                                  : random_problem(size, 300, 20, i));
    problems.back().options.algorithm = i % 4 == 3 ? "gtopk" : "auto";
  }
  std::vector<std::vector<Tensor>> tensors(problems.size());
  std::vector<SharedEnding> endings;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      tensors[i].push_back(support::tensor_of(problems[i], rank));
    }
  }
  // Rank by rank, so that the ranks are far apart.
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < problems.size(); ++i) {
      endings.push_back(
          ranks.submit(rank, support::sparse_all_reduce(problems[i], tensors[i][rank])));
    }
  }
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    EXPECT_EQ(ranks.group(rank)->per_group_state.of<Planner>().measured_by, 1U);
    for (std::size_t i = 0; i < problems.size(); ++i) {
      EXPECT_EQ(tensors[i][rank].values, tensors[i][0].values) << "operation " << i;
    }
  }
  EXPECT_EQ(support::group_works(ranks), "");
  EXPECT_TRUE(ranks.close().empty());
}

INSTANTIATE_TEST_SUITE_P(Every, Auto, ::testing::ValuesIn(counts_of_ranks()));

TEST(Plan, IsTheSameReportOnEveryRankAndMeasuresAnewOnDemand) {
  InprocRanks ranks(3, network(1));
  const auto planned = [&](bool anew) {
    std::vector<PlanReport> reports(3);
    const auto endings = ranks.run([&](std::uint32_t rank) {
      return gtopk::plan(100'000, DataType::kFloat32, {.k = 100}, reports[rank], anew);
    });
    for (const SharedEnding& ending : endings) {
      EXPECT_TRUE(ending->good()) << ending->text();
    }
    for (const PlanReport& report : reports) {
      EXPECT_EQ(report.algorithm, reports[0].algorithm);
      EXPECT_EQ(report.reason, reports[0].reason);
      EXPECT_EQ(report.measured_by, reports[0].measured_by);
      EXPECT_EQ(report.costs.merge, reports[0].costs.merge);
      EXPECT_EQ(report.actual_seconds, 0);
      EXPECT_EQ(report.predictions.size(), 8U);
    }
    return reports[0].measured_by;
  };
  EXPECT_EQ(planned(false), 1U);
  EXPECT_EQ(planned(false), 1U);
  EXPECT_EQ(planned(true), 3U);
  EXPECT_EQ(planned(false), 3U);
  EXPECT_EQ(last_plan(ranks, 0).algorithm, "");  // nothing has run
  EXPECT_TRUE(ranks.close().empty());
}

TEST(Planner, CostsAgeByTheNumberOfTheCollective) {
  Planner planner;
  EXPECT_FALSE(planner.knows(0, 0));
  planner.costs = kEthernet;
  planner.measured_by = 7;
  EXPECT_TRUE(planner.knows(8, 0));
  EXPECT_TRUE(planner.knows(7 + Planner::kRefreshAfter - 1, 0));
  EXPECT_FALSE(planner.knows(7 + Planner::kRefreshAfter, 0));
}

TEST(Plan, OldCostsAreMeasuredAgain) {
  InprocRanks ranks(2, network(2));
  const Problem problem = random_problem(2, 300, 20, 1);
  run_automatically(ranks, problem);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {  // pretend it was long ago
    ranks.group(rank)->per_group_state.of<Planner>().measured_by = 1 - Planner::kRefreshAfter;
  }
  run_automatically(ranks, problem);
  EXPECT_EQ(last_plan(ranks, 1).measured_by, 2U);
  EXPECT_TRUE(ranks.close().empty());
}

/// Runs `auto` on three ranks, one of which calls something else; all get both sides' texts.
void expect_mismatch(InprocRanks& ranks, const SparseOptions& theirs, const std::string& this_side,
                     const std::string& other_side) {
  Problem problem = random_problem(3, 300, 20, 1);
  problem.options.algorithm = "auto";
  Problem other = problem;
  other.options = theirs;
  other.options.k = 20;
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  const std::vector<Tensor> before = tensors;
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return support::sparse_all_reduce(rank == 1 ? other : problem, tensors[rank]);
  });
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(endings[rank]->error.has_value()) << endings[rank]->text();
    EXPECT_EQ(endings[rank]->error->kind(), ErrorKind::kMismatch);
    EXPECT_NE(endings[rank]->text().find(this_side), std::string::npos) << endings[rank]->text();
    EXPECT_NE(endings[rank]->text().find(other_side), std::string::npos) << endings[rank]->text();
    EXPECT_EQ(tensors[rank].values, before[rank].values);
    EXPECT_EQ(tensors[rank].residual, before[rank].residual);
  }
  EXPECT_EQ(support::group_works(ranks), "");
}

TEST(AutoMismatch, IsToldOnEveryRankBeforeAndAfterCostsAreKnown) {
  InprocRanks ranks(3, network(3));
  const SparseOptions exact{.algorithm = "auto", .semantics = Semantics::kExactSum};
  for (int i = 0; i < 2; ++i) {
    expect_mismatch(ranks, exact, "semantics=any", "semantics=exact_sum");
    expect_mismatch(ranks, {.algorithm = "gtopk"}, "algorithm=auto", "algorithm=gtopk");
    const Problem problem = random_problem(3, 300, 20, 2);
    expect_outcome(problem, run_automatically(ranks, problem));
  }
  EXPECT_TRUE(ranks.close().empty());
}

TEST(AutoMismatch, OfCostsIsToldToo) {
  InprocRanks ranks(2, network(4));
  give_costs(ranks, kEthernet);
  ranks.group(1)->per_group_state.of<Planner>().measured_by = 5;  // impossible in a working group
  Problem problem = random_problem(2, 300, 20, 1);
  problem.options.algorithm = "auto";
  std::vector<Tensor> tensors = {support::tensor_of(problem, 0), support::tensor_of(problem, 1)};
  const auto endings = ranks.run(
      [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
  for (const SharedEnding& ending : endings) {
    EXPECT_NE(ending->text().find("costs_of=0"), std::string::npos) << ending->text();
    EXPECT_NE(ending->text().find("costs_of=5"), std::string::npos) << ending->text();
  }
  EXPECT_EQ(support::group_works(ranks), "");
  EXPECT_TRUE(ranks.close().empty());
}

TEST(AutoMismatch, OfAnythingElseKeepsTheCosts) {
  InprocRanks ranks(3, network(3));
  const Problem problem = random_problem(3, 300, 20, 2);
  run_automatically(ranks, problem);
  const SparseOptions exact{.algorithm = "auto", .semantics = Semantics::kExactSum};
  expect_mismatch(ranks, exact, "semantics=any", "semantics=exact_sum");
  expect_mismatch(ranks, {.algorithm = "gtopk"}, "algorithm=auto", "algorithm=gtopk");
  run_automatically(ranks, problem);
  EXPECT_EQ(last_plan(ranks, 0).measured_by, 1U);
  EXPECT_TRUE(ranks.close().empty());
}

TEST(AutoFailure, RankKilledWhileMeasuring_IsNamedInEveryError) {
  int failed_in_time = 0;
  for (std::uint64_t seed = 1; seed <= (support::kSanitized ? 5 : 20); ++seed) {
    reference::Random random(seed);
    InprocRanks ranks(4, network(seed));
    Problem problem = random_problem(4, 300, 20, seed);
    problem.options.algorithm = "auto";
    std::vector<Tensor> tensors;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      tensors.push_back(support::tensor_of(problem, rank));
    }
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      endings.push_back(ranks.submit(rank, support::sparse_all_reduce(problem, tensors[rank])));
      endings.push_back(ranks.submit(rank, support::sparse_all_reduce(problem, tensors[rank])));
    }
    std::uint64_t steps = random.below(200);
    ranks.run_until([&] { return steps-- == 0; });
    const auto& planner = ranks.group(0)->per_group_state.of<Planner>();
    const bool in_time = !planner.costs.has_value();
    ranks.kill(2, transport::inproc::Death::kNoticed);
    ranks.run_all();
    for (std::size_t i = 0; i < endings.size(); ++i) {
      if (i / 2 == 2) {
        continue;
      }
      ASSERT_TRUE(endings[i]->ended) << "seed " << seed;
      if (endings[i]->good()) {
        continue;
      }
      failed_in_time += in_time ? 1 : 0;
      EXPECT_NE(endings[i]->text().find("rank 2 (host node2"), std::string::npos)
          << endings[i]->text();
    }
  }
  EXPECT_GT(failed_in_time, 0);
}

std::string refused(const sparse::SparseCall& call) {
  try {
    static_cast<void>(sparse::collective(call));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(AutoArguments, AreCheckedBeforeAnythingIsSent) {
  sparse::SparseCall call;
  call.d = 100;
  call.options.algorithm = "auto";
  EXPECT_EQ(refused(call), "sparse_all_reduce needs k >= 1 or a density in (0, 1], seen neither");
  call.options.k = 10;
  EXPECT_EQ(refused(call), "");
  float note = 0;
  call.delivered = {.values = &note, .capacity = 100};
  EXPECT_NE(refused(call).find("name an algorithm"), std::string::npos);
  call.delivered = {};
  call.options.semantics = static_cast<Semantics>(9);
  EXPECT_NE(refused(call), "");
  call.options.semantics = Semantics::kGtopk;
  call.options.algorithm = "rs-ag";
  EXPECT_EQ(refused(call), "semantics 'gtopk' rules out algorithm 'rs-ag', which keeps 'any'");
  call.options.algorithm = "topk";
  EXPECT_EQ(refused(call), "");
}

TEST(AutoArguments, Candidates_FitSemanticsSelectorAndWire) {
  const auto names = [](Semantics semantics, const std::string& selector,
                        const std::string& wire = "lossless") {
    sparse::SparseCall call;
    call.d = 10'000;
    call.options = {.algorithm = "auto", .selector = selector, .wire = wire, .density = 0.01};
    call.options.semantics = semantics;
    std::vector<std::string> names;
    for (const sparse::ResolvedCall& resolved : sparse::candidates(call)) {
      names.emplace_back(resolved.algorithm->name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(Semantics::kExactSum, "exact"), (Names{"topk", "dense", "exact"}));
  EXPECT_EQ(names(Semantics::kGtopk, "exact"), (Names{"gtopk", "gtopk-tree", "topk", "dense",
                                                      "exact", "hierarchical", "gtopk-placed"}));
  EXPECT_EQ(names(Semantics::kAny, "gaussian"),
            (Names{"gtopk", "gtopk-tree", "topk", "dense", "rs-ag", "exact", "hierarchical",
                   "gtopk-placed"}));
  EXPECT_EQ(names(Semantics::kAny, "block"), names(Semantics::kAny, "exact"));
  EXPECT_EQ(names(Semantics::kAny, "block", "2bit"),
            (Names{"topk", "dense", "dense-placed", "exact"}));
  EXPECT_EQ(names(Semantics::kAny, "exact", "2bit"),
            (Names{"topk", "dense", "dense-placed", "exact"}));
}

}  // namespace
}  // namespace gtopk
