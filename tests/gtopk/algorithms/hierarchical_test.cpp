// Sparse, algorithms: `hierarchical` and `gtopk-placed` on any hosts: one, as many as ranks,
// uneven ones, ranks in any order; and cases worked by hand.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using Hosts = std::vector<std::string>;

/// By name: neighbours on hosts of one size, ranks dealt out in turn, a large host beside small
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
    if (ranks == 2) {
      maps["the first and the last"].back() = "ends";
    }
  }
  return maps;
}

class ByHosts : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::string>> {};

TEST_P(ByHosts, GivesTheReferencesBitsOnEveryMapOfHosts) {
  const auto& [size, algorithm] = GetParam();
  const std::vector<std::string> wires = reference::wires(algorithm);
  std::uint64_t seed = 1000UL * size;
  for (const auto& [name, hosts] : maps_of(size)) {
    for (const DataType type : reference::kFloatingTypes) {
      for (int turn = 0; turn < (support::kSanitized ? 1 : 4); ++turn) {
        reference::Case drawn = reference::random_case(++seed, type, size, algorithm);
        drawn.problem.options.wire = reference::one_of(wires, seed);
        InprocRanks ranks(size, support::network(seed), hosts);
        ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
            << drawn.description << ", " << name << ", " << drawn.problem.options.wire;
        ASSERT_TRUE(ranks.close().empty()) << drawn.description;
      }
    }
  }
}

TEST_P(ByHosts, IsGtopkWhereEachRankIsAHost) {
  const auto& [size, algorithm] = GetParam();
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Problem problem = reference::random_case(seed, DataType::kFloat32, size, algorithm).problem;
    problem.options.selector = seed % 2 == 0 ? "exact" : "sampled";
    problem.hosts = support::hosts_of(size, 1);
    const reference::Outcome by_hosts = reference::all_reduce(problem);
    InprocRanks ranks(size, {.seed = seed}, problem.hosts);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
    problem.options.algorithm = "gtopk";
    const reference::Outcome flat = reference::all_reduce(problem);
    EXPECT_EQ(by_hosts.tensor, flat.tensor);
    EXPECT_EQ(by_hosts.residuals, flat.residuals);
  }
}

class Hierarchical : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Hierarchical, DeliversWhatExactDoesWhereAllShareAHost) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Problem problem =
        reference::random_case(seed, DataType::kFloat64, GetParam(), "hierarchical").problem;
    // Whole numbers, so that sums are the same in any order.
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

constexpr std::uint32_t kRanks[] = {2, 3, 4, 5, 6, 7, 8, 9, 16};
INSTANTIATE_TEST_SUITE_P(Every, ByHosts,
                         ::testing::Combine(::testing::ValuesIn(kRanks),
                                            ::testing::Values("hierarchical", "gtopk-placed")));
INSTANTIATE_TEST_SUITE_P(Every, Hierarchical, ::testing::ValuesIn(kRanks));

// With neighbours on hosts of equal powers of two the tree by hosts is the tree by ranks.
TEST(Placed, IsGtopkBitForBitWhereItsTreeIsThatOfGtopk) {
  struct Where {
    std::uint32_t ranks, each;
  };
  for (const auto [ranks, each] : {Where{3, 3}, {7, 7}, {8, 8}, {4, 2}, {8, 2}, {8, 4}, {16, 4}}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Problem problem =
          reference::random_case(seed, DataType::kFloat32, ranks, "gtopk-placed").problem;
      problem.hosts = support::hosts_of(ranks, each);
      InprocRanks network(ranks, {.seed = seed}, problem.hosts);
      EXPECT_EQ(support::differs_from_reference(network, problem), "");
      const reference::Outcome placed = reference::all_reduce(problem);
      problem.options.algorithm = "gtopk";
      const reference::Outcome flat = reference::all_reduce(problem);
      EXPECT_EQ(placed.tensor, flat.tensor) << ranks << " ranks, " << each << " a host";
      EXPECT_EQ(placed.residuals, flat.residuals) << ranks << " ranks, " << each << " a host";
    }
  }
}

// With ranks dealt to two hosts in turn, a host's ranks merge first: 0 with 2, 1 with 3.
TEST(Placed, MergesAHostsRanksFirst) {
  Problem problem =
      reference::published_counterexample(DataType::kFloat32, PutBack::kOwn, "gtopk-placed");
  problem.options.k = 2;
  problem.d = 5;
  const std::vector<std::vector<double>> values = {
      {4, 0, 3, 0, 0}, {0, 5, 0, 2, 0}, {0, 0, 3, 0, 1}, {0, 0, 0, 2.5, 2}};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    problem.ranks[rank] = {reference::zeros(problem.type, 5), std::nullopt};
    for (std::uint64_t i = 0; i < 5; ++i) {
      reference::store(problem.type, problem.ranks[rank].gradient, i, values[rank][i]);
    }
  }
  const auto result = [&](const Hosts& hosts) {
    problem.hosts = hosts;
    InprocRanks ranks(4, {}, hosts);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
    std::map<std::uint64_t, double> delivered = reference::all_reduce(problem).delivered;
    return delivered;
  };
  using Delivered = std::map<std::uint64_t, double>;
  // {4, 6} from ranks 0 and 2 and {5, 4.5} from ranks 1 and 3: 6 and 5 remain.
  EXPECT_EQ(result({"x", "y", "x", "y"}), (Delivered{{1, 5}, {2, 6}}));
  // Ranks 0 and 1 keep 4 and 5; 2 and 3 keep 3 and 3: 5 and 4 remain.
  EXPECT_EQ(result({"x", "x", "y", "y"}), (Delivered{{0, 4}, {1, 5}}));
}

// Headers aside, hosts exchange what gtopk exchanges among as many ranks as hosts.
TEST(Placed, SendsTheListsOfLeadersAloneToOtherHosts) {
  constexpr std::uint64_t kEntries = 200;
  for (const std::string algorithm : {"gtopk-placed", "hierarchical"}) {
    for (const bool in_turn : {false, true}) {
      for (const auto& [hosts, each] : {std::pair{2U, 4U}, {4U, 2U}, {3U, 3U}, {2U, 1U}}) {
        const std::uint32_t size = hosts * each;
        Problem problem;
        problem.d = kEntries * size;
        problem.options = {.k = kEntries, .algorithm = algorithm, .wire = "raw"};
        Hosts names;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          names.push_back(std::to_string(in_turn ? rank % hosts : rank / each));
          reference::Input input{reference::zeros(problem.type, problem.d), std::nullopt};
          for (std::uint64_t i = 0; i < kEntries; ++i) {
            reference::store(problem.type, input.gradient, i * size + rank, 1.0 + rank);
          }
          problem.ranks.push_back(std::move(input));
        }
        problem.hosts = names;
        InprocRanks ranks(size, {}, names);
        std::uint64_t lists = 0;
        std::uint64_t bytes = 0;
        ranks.fabric().set_faults([&](const transport::inproc::Sent& sent) {
          if (sent.bytes > 64 && names[sent.source] != names[sent.destination] &&
              transport::kind_of(sent.tag) == transport::TagKind::kCollective) {
            ++lists;
            bytes += sent.bytes;
          }
          return transport::inproc::Fault{};
        });
        ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
        // Three hosts: one folds and gets the result, two swap.
        const std::uint64_t among_hosts = hosts == 3 ? 4 : hosts == 4 ? 8 : 2;
        EXPECT_EQ(lists, among_hosts) << algorithm << ", " << hosts << " hosts";
        EXPECT_EQ(bytes, among_hosts * (64 + 8 * kEntries)) << algorithm << ", " << hosts;
      }
    }
  }
}

// Ranks hold (A,1) (B,2) (A,3) (C,.5), k = 1, on two hosts in turn: ranks 0 and 2 have A = 4; ranks
// 1 and 3 keep B and drop C, to rank 1. Between hosts A is kept and B dropped, to rank 0.
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

TEST(Announcement, CallsOfOtherAlgorithms_AreMismatchOnEveryRank) {
  std::uint64_t seed = 0;
  for (std::uint32_t size = 2; size <= (support::kSanitized ? 4U : 6U); ++size) {
    for (const auto& [name, hosts] : maps_of(size)) {
      for (const std::string& other : reference::algorithms()) {
        if (other == "hierarchical") {
          continue;
        }
        InprocRanks ranks(size, support::network(++seed), hosts);
        for (std::uint32_t split = 1; split + 1 < 1U << size; ++split) {
          std::vector<Problem> problems(2);
          for (Problem& problem : problems) {
            problem = reference::random_case(1, DataType::kFloat32, size, other).problem;
            problem.options.wire = "raw";
          }
          problems[1].options.algorithm = "hierarchical";
          std::vector<support::Tensor> tensors;
          for (std::uint32_t rank = 0; rank < size; ++rank) {
            tensors.push_back(support::tensor_of(problems[0], rank));
          }
          const auto endings = ranks.run([&](std::uint32_t rank) {
            return support::sparse_all_reduce(problems[split >> rank & 1U], tensors[rank]);
          });
          for (const auto& ending : endings) {
            ASSERT_TRUE(ending->error.has_value()) << other << ", " << name << ", " << split;
            ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch)
                << other << ", " << name << ", " << split << ": " << ending->text();
          }
        }
        EXPECT_EQ(support::group_works(ranks), "") << other << ", " << name;
        EXPECT_TRUE(ranks.close().empty());
      }
    }
  }
}

}  // namespace
}  // namespace gtopk
