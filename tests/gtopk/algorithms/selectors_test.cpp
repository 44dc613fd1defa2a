// Sparse, algorithms: every selector under every algorithm gives the reference's bits; a
// selector's state changes with a step that happens and with no other; how many entries there may
// be, and which calls are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/reference/reference_selectors.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::Tensor;

TEST(Selectors, UnderEveryAlgorithmGiveTheReferencesBits) {
  std::uint64_t seed = 0;
  for (const Choice& selector : selectors()) {
    for (const std::string& algorithm : reference::algorithms()) {
      for (const std::uint32_t size : {1U, 2U, 3U, 4U, 5U, 8U}) {
        for (const DataType type : reference::kFloatingTypes) {
          for (int times = 0; times < 3; ++times) {
            reference::Case drawn = reference::random_case(++seed, type, size, algorithm);
            reference::Problem& problem = drawn.problem;
            reference::choose_selector(problem.options, problem.d, std::string(selector.name));
            InprocRanks ranks(size, support::network(seed));
            ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
                << drawn.description << ", " << selector.name;
            ASSERT_TRUE(ranks.close().empty()) << drawn.description;
          }
        }
      }
    }
  }
}

TEST(Selectors, ADensityIsAsGoodAsTheKThatFollowsFromIt) {
  for (const Choice& selector : selectors()) {
    reference::Problem problem = reference::random_case(7, DataType::kFloat32, 4, "topk").problem;
    problem.options.selector = selector.name;
    problem.options.k = 0;
    problem.options.density = 0.1;
    InprocRanks ranks(4);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << selector.name;
  }
}

reference::Problem normal_problem(std::uint32_t ranks, std::uint64_t d, std::uint64_t seed) {
  reference::Problem problem;
  problem.d = d;
  problem.options.selector = "threshold";
  reference::Random random(seed);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    reference::Input input{.gradient = reference::zeros(problem.type, d),
                           .residual = reference::zeros(problem.type, d)};
    for (std::uint64_t i = 0; i < d; ++i) {
      double sum = 0;  // nearly normal
      for (int n = 0; n < 12; ++n) {
        sum += random.uniform() - 0.5;
      }
      reference::store(problem.type, input.gradient, i, sum);
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

TEST(SelectorState, MatchesReferenceAndIsUnchangedByNanStep) {
  constexpr std::uint32_t kRanks = 3;
  for (const char* const algorithm : {"gtopk", "gtopk-tree", "topk"}) {
    InprocRanks ranks(kRanks);
    std::vector<SelectorState> states(kRanks);
    std::vector<std::optional<reference::Bytes>> residuals(kRanks);
    int not_exact = 0;
    for (std::uint64_t step = 0; step < 12; ++step) {
      reference::Problem problem = normal_problem(kRanks, 2'000, step + 1);
      problem.options.k = 100;
      problem.options.algorithm = algorithm;
      const bool spoiled = step % 4 == 3;
      if (spoiled) {
        reference::store(problem.type, problem.ranks[1].gradient, 5, std::nan(""));
      }
      std::vector<Tensor> tensors;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        if (residuals[rank]) {
          problem.ranks[rank].residual = residuals[rank];
        }
        problem.ranks[rank].state = states[rank];
        tensors.push_back(support::tensor_of(problem, rank));
      }
      const std::vector<SelectorState> before = states;
      const reference::Outcome expected = reference::all_reduce(problem);
      ASSERT_EQ(expected.happened, !spoiled);
      const auto endings = ranks.run([&](std::uint32_t rank) {
        reference::Problem mine = problem;
        mine.options.state = &states[rank];
        return support::sparse_all_reduce(mine, tensors[rank]);
      });
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
        ASSERT_EQ(reference::difference(problem.type, expected.tensor, tensors[rank].values), "")
            << algorithm << " step " << step;
        ASSERT_EQ(
            reference::difference(problem.type, *expected.residuals[rank], *tensors[rank].residual),
            "")
            << algorithm << " step " << step;
        ASSERT_EQ(states[rank].numbers, expected.states[rank].numbers) << "step " << step;
        if (spoiled) {
          ASSERT_EQ(states[rank].numbers, before[rank].numbers) << "step " << step;
        } else {
          ASSERT_GT(states[rank].numbers[0], 0) << "step " << step;
          not_exact += expected.selected[rank] != 100 ? 1 : 0;
        }
        residuals[rank] = tensors[rank].residual;
      }
    }
    EXPECT_GT(not_exact, 0) << "a threshold was never reused";
  }
}

/// k = 10 of 200 elements, and a seed for those that draw.
reference::Problem problem_of_200(std::uint32_t size, const std::string& algorithm) {
  reference::Random random(size);
  reference::Problem problem;
  problem.d = 200;
  problem.options.k = 10;
  problem.options.algorithm = algorithm;
  problem.options.seed = 3;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    reference::Input input{reference::zeros(problem.type, problem.d), std::nullopt};
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      reference::store(problem.type, input.gradient, i, random.uniform() - 0.5);
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

std::string refusal_of_options(const SparseOptions& options) {
  sparse::SparseCall call;
  call.d = 100;
  call.options = options;
  try {
    static_cast<void>(sparse::resolve(call));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    return error.what();
  }
  return {};
}

TEST(Selectors, CallsThatNoRankMayMakeAreRefused) {
  EXPECT_EQ(refusal_of_options({.density = 0.1}), "");
  EXPECT_EQ(refusal_of_options({}),
            "sparse_all_reduce needs k >= 1 or a density in (0, 1], seen neither");
  EXPECT_EQ(refusal_of_options({.k = 5, .density = 0.1}),
            "sparse_all_reduce takes k or a density, seen k = 5 and density = 0.1");
  EXPECT_EQ(refusal_of_options({.density = 1.5}),
            "sparse_all_reduce needs a density in (0, 1], seen 1.5");
  EXPECT_NE(refusal_of_options({.density = -0.5}), "");
  EXPECT_NE(refusal_of_options({.density = std::nan("")}), "");
  const auto block = [](const char* algorithm, std::uint64_t k, double density,
                        std::uint64_t block) {
    return refusal_of_options(
        {.k = k, .algorithm = algorithm, .selector = "block", .density = density, .block = block});
  };
  EXPECT_EQ(block("topk", 0, 0.1, 10), "");
  EXPECT_EQ(block("dense", 0, 0, 10), "");
  EXPECT_EQ(block("topk", 5, 0, 10), "select 'block' takes a density and no k, seen k = 5");
  EXPECT_EQ(block("topk", 0, 0, 10), "sparse_all_reduce needs a density in (0, 1], seen 0");
  EXPECT_EQ(block("topk", 0, 0.1, 0), "select 'block' needs block >= 1, seen 0");
  for (const std::string& algorithm : reference::algorithms()) {
    EXPECT_EQ(block(algorithm.c_str(), 0, 0.1, 10), "");
  }
}

TEST(Selectors, ADensityIsTheKThatItMeansUnderEveryAlgorithm) {
  constexpr std::uint32_t kRanks = 3;
  for (const std::string& algorithm : reference::algorithms()) {
    reference::Problem problem = problem_of_200(kRanks, algorithm);
    const reference::Outcome expected = reference::all_reduce(problem);
    problem.options.density = 0.05;  // of 200 elements
    problem.options.k = 0;
    support::InprocRanks ranks(kRanks);
    std::vector<support::Tensor> tensors;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      tensors.push_back(support::tensor_of(problem, rank));
    }
    const auto endings = ranks.run(
        [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(endings[rank]->good()) << algorithm << ": " << endings[rank]->text();
      EXPECT_EQ(reference::difference(problem.type, expected.tensor, tensors[rank].values), "")
          << algorithm;
    }
  }
}

sparse::ListPlan lists_of(const SparseOptions& options) {
  sparse::SparseCall call;
  call.d = 100;
  call.options = options;
  return sparse::resolve(call).lists;
}

TEST(Selectors, LeafListCapacity_FitsWhatSelectorMayReturn) {
  for (const char* const selector : {"gaussian", "sampled", "threshold"}) {
    for (const auto& [k, leaf] :
         {std::pair{1, 2}, {2, 3}, {3, 4}, {10, 14}, {75, 100}, {99, 100}}) {
      const SparseOptions options{.k = static_cast<std::uint64_t>(k), .selector = selector};
      EXPECT_EQ(lists_of(options).k, static_cast<std::uint64_t>(k));
      EXPECT_EQ(lists_of(options).leaf, static_cast<std::uint64_t>(leaf));
      EXPECT_EQ(lists_of(options).entries_of(8), static_cast<std::uint64_t>(leaf));
    }
  }
  EXPECT_EQ(lists_of({.k = 10}).leaf, 10U);
  EXPECT_EQ(lists_of({.k = 10, .algorithm = "topk", .selector = "sampled"}).entries_of(4), 56U);
  const auto block =
      lists_of({.algorithm = "topk", .selector = "block", .density = 0.1, .block = 30});
  EXPECT_EQ(block.k, 10U);  // 3 of each 30, 1 of the last 10
  EXPECT_EQ(block.leaf, 10U);
}

}  // namespace
}  // namespace gtopk
