// Communicator: between real processes every algorithm gives the sequential reference's tensor and
// residuals, bit for bit on every rank, and continues with the residuals it left. Cases and
// reference results are computed once, before the ranks are forked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "tests/communicator/member.hpp"
#include "tests/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using support::Tensor;

constexpr std::size_t kSteps = 2;
/// For each algorithm and type.
constexpr std::uint64_t kCases = kSanitized ? 4 : 16;
std::size_t combinations() {
  return reference::algorithms().size() * std::size(reference::kFloatingTypes);
}
/// For long tensors; under a sanitizer most time goes into the reference.
constexpr std::array kLongTypes = {
    DataType::kFloat32,
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    DataType::kBfloat16,
#endif
};
/// So many cases have a step in flight at once.
constexpr std::size_t kAtOnce = 16;

/// A case of several consecutive steps, with the reference's results.
struct Scenario {
  std::string description;
  std::vector<reference::Problem> steps;
  std::vector<reference::Outcome> outcomes;
};

/// The next step: each rank gets its neighbour's gradient and keeps its own residual. Non-finite
/// elements of a gradient become finite, so that a skipped step is followed by one that can happen.
reference::Problem next_step(const reference::Problem& problem, const reference::Outcome& outcome) {
  reference::Problem next = problem;
  for (std::size_t rank = 0; rank < next.ranks.size(); ++rank) {
    reference::Input& input = next.ranks[rank];
    input.gradient = problem.ranks[(rank + 1) % next.ranks.size()].gradient;
    input.residual = outcome.residuals[rank];
    for (std::uint64_t i = 0; i < next.d; ++i) {
      if (!std::isfinite(reference::load(next.type, input.gradient, i))) {
        reference::store(next.type, input.gradient, i, 1.0);
      }
    }
  }
  return next;
}

Scenario play(std::string description, reference::Problem first) {
  Scenario scenario;
  scenario.description = std::move(description);
  scenario.steps.push_back(std::move(first));
  for (;;) {
    scenario.outcomes.push_back(reference::all_reduce(scenario.steps.back()));
    if (scenario.steps.size() == kSteps) {
      return scenario;
    }
    scenario.steps.push_back(next_step(scenario.steps.back(), scenario.outcomes.back()));
  }
}

std::vector<Scenario> random_scenarios(std::uint32_t ranks) {
  std::vector<Scenario> scenarios;
  for (std::uint64_t number = 0; number < kCases; ++number) {
    for (const std::string& algorithm : reference::algorithms()) {
      for (const DataType type : reference::kFloatingTypes) {
        const std::uint64_t seed = 1 + number + 1000UL * ranks +
                                   100000 * static_cast<std::uint64_t>(type) +
                                   1000000 * reference::number_of(algorithm);
        reference::Case drawn = reference::random_case(seed, type, ranks, algorithm);
        scenarios.push_back(play(drawn.description, std::move(drawn.problem)));
      }
    }
  }
  return scenarios;
}

/// Long enough for dense's ring, for lists of more than 64 KiB, and for the thread that sweeps long
/// tensors.
reference::Problem long_problem(std::uint32_t ranks, const std::string& algorithm, DataType type) {
  reference::Problem problem;
  problem.type = type;
  problem.d = 33'001;
  problem.options = {.k = 18'000,  // rs-ag sends half as many
                     .algorithm = algorithm,
                     .put_back = ranks % 2 == 0 ? PutBack::kOwn : PutBack::kMerged,
                     .op = type == DataType::kFloat32 ? ReduceOp::kSum : ReduceOp::kAvg,
                     .seed = ranks};
  reference::Random random(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    reference::Input input{.gradient = reference::zeros(type, problem.d),
                           .residual = reference::zeros(accumulation_type(type), problem.d)};
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      const double sign = random.one_in(2) ? 1.0 : -1.0;
      reference::store(type, input.gradient, i, sign * 0.01 / (1.001 - random.uniform()));
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

std::vector<Scenario> long_scenarios(std::uint32_t ranks) {
  std::vector<Scenario> scenarios;
  for (const std::string& algorithm : reference::algorithms()) {
    for (const DataType type : kLongTypes) {
      scenarios.push_back(play(fmt::format("long {} {} P={}", algorithm, to_string(type), ranks),
                               long_problem(ranks, algorithm, type)));
    }
  }
  return scenarios;
}

/// Empty, or what is wrong with this rank's tensor after a step.
std::string difference(const reference::Problem& problem, const reference::Outcome& outcome,
                       std::uint32_t rank, const Tensor& tensor) {
  const std::string values = reference::difference(problem.type, outcome.tensor, tensor.values);
  if (!values.empty()) {
    return "tensor: " + values;
  }
  if (!tensor.residual) {
    return {};
  }
  const std::string residual = reference::difference(
      accumulation_type(problem.type), outcome.residuals[rank].value(), *tensor.residual);
  return residual.empty() ? residual : "residual: " + residual;
}

/// A rank's body: runs all scenarios, step by step.
void play_on(ForkedRank& self, const std::vector<Scenario>& scenarios, const char* tls) {
  const auto rank = static_cast<std::uint32_t>(self.rank());
  std::vector<Tensor> tensors(scenarios.size());
  Member member(self, support::usual_hosts(static_cast<std::uint32_t>(self.size())).at(rank));
  EXPECT_THAT(member.process().transport(), testing::HasSubstr(fmt::format("TLS={} ", tls)));
  for (std::size_t begin = 0; begin < scenarios.size(); begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, scenarios.size());
    for (std::size_t step = 0; step < kSteps; ++step) {
      std::vector<Pending> calls(end - begin);
      for (std::size_t i = begin; i < end; ++i) {
        const reference::Problem& problem = scenarios[i].steps[step];
        const reference::Input& input = problem.ranks[rank];
        tensors[i].values = input.gradient;
        if (step == 0) {
          tensors[i].residual = input.residual;  // later steps keep their own
        }
        reference::Bytes* const residual = tensors[i].residual ? &*tensors[i].residual : nullptr;
        member.group().run(
            gtopk::sparse_all_reduce(tensors[i].values.data(),
                                     residual == nullptr ? nullptr : residual->data(), problem.d,
                                     problem.type, problem.options),
            calls[i - begin].call());
      }
      for (std::size_t i = begin; i < end; ++i) {
        const Ending ending = calls[i - begin].wait();
        const std::string where = fmt::format("{}, step {}", scenarios[i].description, step);
        ASSERT_TRUE(ending.good()) << where << ": " << ending.text;
        ASSERT_EQ(
            difference(scenarios[i].steps[step], scenarios[i].outcomes[step], rank, tensors[i]), "")
            << where;
      }
    }
  }
  EXPECT_EQ(member.group().statistics().operations, kSteps * scenarios.size());
}

/// One job in which every rank runs all scenarios.
void expect_equality(std::uint32_t ranks, const char* tls, const std::vector<Scenario>& scenarios) {
  run_forked_ranks(static_cast<int>(ranks),
                   [&](ForkedRank& self) { play_on(self, scenarios, tls); },
                   {.limit = std::chrono::seconds(120), .environment = {{"UCX_TLS", tls}}});
}

using Parameters = std::tuple<std::uint32_t, const char*>;

class Processes : public testing::TestWithParam<Parameters> {};
class LongTensors : public testing::TestWithParam<std::uint32_t> {};

// 10 rank counts (2 with sanitizers), 2 networks, every algorithm, 4 types, 16 random cases (4 with
// sanitizers) of 2 steps each.
TEST_P(Processes, TensorAndResiduals_MatchReferenceBitsEachStep) {
  const auto [ranks, tls] = GetParam();
  const std::vector<Scenario> scenarios = random_scenarios(ranks);
  ASSERT_EQ(scenarios.size(), kCases * combinations());
  expect_equality(ranks, tls, scenarios);
}

std::vector<std::uint32_t> rank_counts() {
  if (kSanitized) {
    return {3, 4};  // one with a fold and one without
  }
  return {std::begin(reference::kRankCounts), std::end(reference::kRankCounts)};
}

INSTANTIATE_TEST_SUITE_P(Every, Processes,
                         testing::Combine(testing::ValuesIn(rank_counts()),
                                          testing::Values(kTcp, kSharedMemory)),
                         [](const auto& instance) {
                           return fmt::format("P{}_{}", std::get<0>(instance.param),
                                              name_of_transport(std::get<1>(instance.param)));
                         });

// Both networks in one case, since most of the time goes into the reference.
TEST_P(LongTensors, TensorAndResiduals_MatchReferenceBitsEachStep) {
  const std::vector<Scenario> scenarios = long_scenarios(GetParam());
  ASSERT_EQ(scenarios.size(), std::size(reference::algorithms()) * kLongTypes.size());
  for (const Scenario& scenario : scenarios) {
    const reference::Problem& problem = scenario.steps.front();
    ASSERT_GT(problem.d * size_of(accumulation_type(problem.type)), reference::kDenseTreeBytes);
    if (!reference::sends_lists(problem.options.algorithm)) {
      continue;
    }
    for (const reference::Outcome& outcome : scenario.outcomes) {
      ASSERT_GT(outcome.lists.front().sent.front() * 8, std::uint64_t{64} << 10U);
    }
  }
  for (const char* const tls : {kTcp, kSharedMemory}) {
    SCOPED_TRACE(tls);
    expect_equality(GetParam(), tls, scenarios);
  }
}

// One count with a fold and one without.
INSTANTIATE_TEST_SUITE_P(Some, LongTensors, testing::Values(3U, 4U),
                         [](const auto& instance) { return fmt::format("P{}", instance.param); });

}  // namespace
}  // namespace gtopk::test
