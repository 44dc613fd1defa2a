// Sparse, algorithms room: `hierarchical`, whatever the hosts: one, as many as ranks, uneven ones,
// ranks in any order; and what it comes to on paper.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "src/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using Hosts = std::vector<std::string>;

/// By name: neighbours on hosts of one size, ranks dealt out in turn, one large host beside small
/// ones, and drawn at random.
std::map<std::string, Hosts> maps_of(std::uint32_t ranks) {
  std::map<std::string, Hosts> maps = {
      {"one host", support::hosts_of(ranks, ranks)}, {"each apart", support::hosts_of(ranks, 1)},
      {"twos", support::hosts_of(ranks, 2)},         {"threes", support::hosts_of(ranks, 3)},
      {"fours", support::hosts_of(ranks, 4)},
  };
  reference::Random random(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    maps["two in turn"].push_back(std::to_string(rank % 2));
    maps["three in turn"].push_back(std::to_string(rank % 3));
    maps["one and the rest"].push_back(rank == 0 ? "one" : "rest");
    maps["the first and the last"].push_back(rank % (ranks - 1) == 0 ? "ends" : "middle");
    maps["at random"].push_back(std::to_string(random.below(1 + ranks / 2)));
    if (ranks == 2) maps["the first and the last"].back() = "ends";
  }
  return maps;
}

class Hierarchical : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Hierarchical, GivesTheReferencesBitsOnEveryMapOfHosts) {
  const std::uint32_t size = GetParam();
  const std::vector<std::string> wires = reference::wires("hierarchical");
  std::uint64_t seed = 1000UL * size;
  for (const auto& [name, hosts] : maps_of(size)) {
    for (const DataType type : reference::kFloatingTypes) {
      for (int turn = 0; turn < (support::kSanitized ? 1 : 4); ++turn) {
        reference::Case drawn = reference::random_case(++seed, type, size, "hierarchical");
        drawn.problem.options.wire = reference::one_of(wires, seed);
        InprocRanks ranks(size, support::network(seed), hosts);
        ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
            << drawn.description << ", " << name << ", " << drawn.problem.options.wire;
        ASSERT_TRUE(ranks.close().empty()) << drawn.description;
      }
    }
  }
}

TEST_P(Hierarchical, IsGtopkWhereEachRankIsAHost) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Problem problem =
        reference::random_case(seed, DataType::kFloat32, GetParam(), "hierarchical").problem;
    problem.options.selector = seed % 2 == 0 ? "exact" : "sampled";
    problem.hosts = support::hosts_of(GetParam(), 1);
    const reference::Outcome by_hosts = reference::all_reduce(problem);
    InprocRanks ranks(GetParam(), {.seed = seed}, problem.hosts);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
    problem.options.algorithm = "gtopk";
    const reference::Outcome flat = reference::all_reduce(problem);
    EXPECT_EQ(by_hosts.tensor, flat.tensor);
    EXPECT_EQ(by_hosts.residuals, flat.residuals);
  }
}

TEST_P(Hierarchical, DeliversWhatExactDoesWhereAllShareAHost) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Problem problem =
        reference::random_case(seed, DataType::kFloat64, GetParam(), "hierarchical").problem;
    // Whole numbers, whose sums are the same in any order.
    reference::Random random(seed);
    for (reference::Input& input : problem.ranks) {
      input.residual.reset();
      for (std::uint64_t i = 0; i < problem.d; ++i) {
        reference::store(problem.type, input.gradient, i,
                         static_cast<double>(random.below(19)) - 9);
      }
    }
    problem.hosts = support::hosts_of(GetParam(), GetParam());
    const reference::Outcome here = reference::all_reduce(problem);
    problem.options.algorithm = "exact";
    EXPECT_EQ(here.tensor, reference::all_reduce(problem).tensor);
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Hierarchical,
                         ::testing::Values(2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 16U));

// Ranks hold (A,1) (B,2) (A,3) (C,.5), k = 1, and lie on two hosts in turn: ranks 0 and 2 have A =
// 4; ranks 1 and 3 keep B and drop C, to rank 1. Between hosts A is kept and B dropped, to rank 0.
TEST(HierarchicalExample, KeepsWhatHostsAndTheirTreeDrop) {
  for (const PutBack put_back : {PutBack::kOwn, PutBack::kMerged}) {
    Problem problem =
        reference::published_counterexample(DataType::kFloat32, put_back, "hierarchical");
    problem.hosts = {"x", "y", "x", "y"};
    InprocRanks ranks(4, {}, problem.hosts);
    std::vector<support::Tensor> tensors;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      tensors.push_back(support::tensor_of(problem, rank));
    }
    const auto endings = ranks.run(
        [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
    const auto values = [](const reference::Bytes& bytes) {
      std::vector<double> all;
      for (std::uint64_t i = 0; i < 3; ++i) {
        all.push_back(reference::load(DataType::kFloat32, bytes, i));
      }
      return all;
    };
    using Values = std::vector<double>;
    const std::vector<Values> left =
        put_back == PutBack::kOwn
            ? std::vector<Values>{{0, 0, 0}, {0, 2, 0}, {0, 0, 0}, {0, 0, 0.5}}
            : std::vector<Values>{{0, 2, 0}, {0, 0, 0.5}, {0, 0, 0}, {0, 0, 0}};
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
      EXPECT_EQ(values(tensors[rank].values), (Values{4, 0, 0}));
      EXPECT_EQ(values(*tensors[rank].residual), left[rank]) << "rank " << rank;
    }
  }
}

// 2^24 + 1 rounds back to 2^24 in float32: (2^24 + 1) + 1 and 2^24 + (1 + 1) differ.
TEST(HierarchicalExample, AddsAHostsListsInTheOrderOfItsRanks) {
  for (const auto& [hosts, sum] :
       {std::pair{Hosts{"x", "x", "x"}, 0x1p24}, std::pair{Hosts{"x", "y", "y"}, 0x1p24 + 2}}) {
    Problem problem;
    problem.d = 1;
    problem.options.k = 1;
    problem.options.algorithm = "hierarchical";
    for (const double value : {0x1p24, 1.0, 1.0}) {
      reference::Input input{reference::zeros(problem.type, 1), std::nullopt};
      reference::store(problem.type, input.gradient, 0, value);
      problem.ranks.push_back(std::move(input));
    }
    InprocRanks ranks(3, {}, hosts);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
    problem.hosts = hosts;
    EXPECT_EQ(reference::load(problem.type, reference::all_reduce(problem).tensor, 0), sum);
  }
}

}  // namespace
}  // namespace gtopk
