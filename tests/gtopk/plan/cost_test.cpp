// Sparse, plan: the algorithms' cost functions predict the messages and bytes that the network
// counts, and price what a codec sends.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/group.hpp"
#include "src/engine/host_map.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/wire/entropy.hpp"
#include "tests/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

using collectives::kHeaderBytes;
using collectives::Tree;
using support::InprocRanks;

constexpr std::uint64_t kEntry = 8;

/// No index is selected twice, all regions have equally many entries, and nodes keep those of the
/// lower rank: entry i of rank r has index i P + r and a magnitude that falls with the rank.
reference::Problem disjoint(std::uint32_t ranks, const std::string& algorithm, std::uint64_t k,
                            std::uint64_t d) {
  reference::Problem problem;
  problem.type = DataType::kFloat32;
  problem.d = d;
  problem.options.k = k;
  problem.options.algorithm = algorithm;
  problem.options.wire = "raw";
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    reference::Input input{reference::zeros(problem.type, d), std::nullopt};
    for (std::uint64_t i = 0; i < k && i * ranks + rank < d; ++i) {
      reference::store(problem.type, input.gradient, i * ranks + rank, ranks - rank);
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

engine::HostMap hosts_of(const reference::Problem& problem) {
  const auto ranks = static_cast<std::uint32_t>(problem.ranks.size());
  return engine::HostMap(problem.hosts.empty() ? support::usual_hosts(ranks) : problem.hosts);
}

Work predicted(const reference::Problem& problem) {
  const Routes routes(hosts_of(problem));
  CriticalPath path({.routes = &routes,
                     .d = problem.d,
                     .k = problem.options.k,
                     .type = {DataType::kFloat32, 4},
                     .codec = &codec_registry().find(problem.options.wire).codec,
                     .per_block = problem.options.selector == "block",
                     .counted = problem.options.mean == MeanOver::kContributors});
  algorithm_registry().find(problem.options.algorithm).cost(path);
  return path.work();
}

struct Counted {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

/// Whether lists go by hosts, behind an announcement; otherwise it equals gtopk.
bool by_hosts(const reference::Problem& problem) {
  const engine::HostMap hosts = hosts_of(problem);
  const std::string& algorithm = problem.options.algorithm;
  return hosts.hosts() < hosts.ranks() &&
         (algorithm == "hierarchical" || (algorithm == "gtopk-placed" && hosts.hosts() > 1));
}

/// The critical path's part of what the network carried: the messages that rank 0 sends, and rank
/// 1's to it if they fold; in a tree also those that rank 0 waits for. The same by hosts, except
/// that headers leave at once, and only one list of a swap between leaders counts.
Counted counted(const reference::Problem& problem) {
  const auto size = static_cast<std::uint32_t>(problem.ranks.size());
  InprocRanks ranks(size, {}, problem.hosts);
  EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
  const Statistics first = ranks.group(0)->metrics.read();
  Counted path{first.messages_sent, first.bytes_sent};
  if (by_hosts(problem)) {
    const Tree tree(size);
    const std::uint64_t headers = tree.rounds() + (tree.folds(0) ? 1 : 0);
    const std::uint64_t swaps = Tree(hosts_of(problem).hosts()).rounds();
    path.messages += first.messages_received + 1 - 2 * headers - swaps;
    path.bytes += first.bytes_received + kHeaderBytes - 2 * headers * kHeaderBytes -
                  swaps * (kHeaderBytes + kEntry * problem.options.k);
  } else if (problem.options.algorithm == "gtopk-tree") {
    path.messages += first.messages_received;
    path.bytes += first.bytes_received;
  } else if (Tree(size).folds(0)) {
    const Statistics second = ranks.group(1)->metrics.read();
    const bool ring = problem.options.algorithm.starts_with("dense") && problem.d > 16384;
    path.messages += ring ? 1 : second.messages_sent;
    path.bytes += ring ? kHeaderBytes : second.bytes_sent;
  }
  EXPECT_TRUE(ranks.close().empty());
  return path;
}

std::vector<std::string> priced() {
  std::vector<std::string> names;
  for (const Choice& choice : algorithm_registry().choices()) {
    if (algorithm_registry().find(choice.name).cost != nullptr) {
      names.emplace_back(choice.name);
    }
  }
  return names;
}

class CostOf : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::string>> {};

TEST_P(CostOf, RawListsWithoutOverlapIsWhatTheNetworkCounts) {
  const auto [size, algorithm] = GetParam();
  // Cuts lie between the ranks' indices, so a list by regions may be one entry longer or shorter.
  const bool regions = algorithm == "rs-ag" || algorithm == "exact";
  constexpr std::uint64_t kEntries = 64;  // each of 16 leaves has equally many
  const reference::Problem problem = disjoint(size, algorithm, kEntries, kEntries * size);
  const Work work = predicted(problem);
  const Counted path = counted(problem);
  EXPECT_EQ(work.messages(), path.messages);
  const double slack = regions ? static_cast<double>(kEntry * 2 * Tree(size).rounds()) : 0;
  EXPECT_NEAR(work.bytes(), static_cast<double>(path.bytes), slack);
  const bool whole = algorithm.starts_with("dense");
  EXPECT_EQ(work.selected, whole ? 0 : problem.d);
  EXPECT_EQ(work.committed, whole ? 0 : problem.d);
  EXPECT_EQ(work.gathered, whole ? problem.d : 0);
  EXPECT_EQ(work.settled, whole ? problem.d : 0);
  EXPECT_EQ(work.coded, 0U);
}

TEST_P(CostOf, FewerEntriesThanLeavesIsWhatTheNetworkCounts) {
  const auto [size, algorithm] = GetParam();
  if (algorithm == "rs-ag" || algorithm == "exact") {
    EXPECT_EQ(predicted(disjoint(size, algorithm, 1, 64)).messages(),
              counted(disjoint(size, algorithm, 1, 64)).messages);
    return;
  }
  const reference::Problem problem = disjoint(size, algorithm, 1, 64);
  EXPECT_EQ(predicted(problem).messages(), counted(problem).messages);
  EXPECT_EQ(predicted(problem).bytes(), static_cast<double>(counted(problem).bytes));
}

INSTANTIATE_TEST_SUITE_P(Every, CostOf,
                         ::testing::Combine(::testing::ValuesIn(reference::kRankCounts),
                                            ::testing::ValuesIn(priced())));

// Of disjoint selections every count is 1.
TEST(CostOfContributors, IsWhatTheNetworkCounts) {
  for (const std::uint32_t size : reference::kRankCounts) {
    for (const char* const algorithm : {"topk", "exact"}) {
      reference::Problem problem = disjoint(size, algorithm, 64, 64ULL * size);
      problem.options.op = ReduceOp::kAvg;
      const double without = predicted(problem).bytes();
      problem.options.mean = MeanOver::kContributors;
      const double with = predicted(problem).bytes();
      const bool merges = size > 2 || (size == 2 && algorithm == std::string("exact"));
      EXPECT_EQ(with > without, merges) << algorithm << " P=" << size;
      const bool regions = algorithm == std::string("exact");
      const double slack = regions ? static_cast<double>(kEntry * 2 * Tree(size).rounds()) : 0;
      EXPECT_NEAR(with, static_cast<double>(counted(problem).bytes), slack)
          << algorithm << " P=" << size;
    }
  }
}

// Regions of two blocks, and of so many that their codes are acknowledged.
TEST(CostOfDense, OnACodedWireIsWhatTheNetworkCounts) {
  for (const std::uint32_t size : {1U, 2U, 4U, 8U}) {
    for (const std::uint64_t blocks : {2U, 100U}) {
      reference::Problem problem = disjoint(size, "dense", 1, size * blocks * 256);
      problem.options.wire = "int8";
      const Work work = predicted(problem);
      const Counted path = counted(problem);
      EXPECT_EQ(work.messages(), path.messages) << size;
      EXPECT_EQ(work.bytes(), static_cast<double>(path.bytes)) << size;
    }
  }
}

/// The same with eight blocks, of which each rank has as many entries of every one.
TEST(CostOfBlocks, IsWhatTheNetworkCounts) {
  for (const std::uint32_t size : {1U, 2U, 3U, 4U, 6U, 8U}) {
    for (const std::string& algorithm : priced()) {
      constexpr std::uint64_t kEntries = 64;
      reference::Problem problem = disjoint(size, algorithm, kEntries, kEntries * size);
      problem.options.selector = "block";
      problem.options.block = 8ULL * size;
      problem.options.density = 1.0 / size;
      const Work work = predicted(problem);
      problem.options.k = 0;
      EXPECT_EQ(work.messages(), counted(problem).messages) << algorithm << " on " << size;
    }
  }
}

struct Applied {
  const char* algorithm;
  std::uint32_t ranks;
  std::uint64_t picked, copied, applied;
};

// Of k = 64 disjoint entries a rank, on rank 0: sent and delivered, and what its nodes drop.
TEST(CostOfEntries, AreThoseOfRankZero) {
  for (const Applied& each : {
           Applied{"gtopk", 1, 64, 0, 128},
           Applied{"gtopk", 2, 64, 0, 64 + 64 + 64},
           Applied{"gtopk", 4, 64, 0, 64 + 64 + 2 * 64},
           Applied{"gtopk", 6, 64, 0, 64 + 64 + 3 * 64},
           Applied{"gtopk-tree", 4, 64, 0, 64 + 64 + 2 * 64},
           Applied{"topk", 4, 64, 0, 64 + 4 * 64},
           // Halves of 32 and 16 are copied out, dropped, and joined to 32 and 64.
           Applied{"rs-ag", 4, 64, 32 + 16 + 32 + 64, 64 + 64 + 32 + 16},
           // Halves of 32 and 32; of 64 sums in a region 16 are kept; joined to 32 and 64.
           Applied{"exact", 4, 64, 32 + 32 + 32 + 64, 64 + 64 + 48},
           Applied{"dense", 4, 0, 0, 0},
       }) {
    const Work work = predicted(disjoint(each.ranks, each.algorithm, 64, 64ULL * each.ranks));
    const std::string what = fmt::format("{} on {} ranks", each.algorithm, each.ranks);
    EXPECT_EQ(work.picked, each.picked) << what;
    EXPECT_EQ(work.copied, each.copied) << what;
    EXPECT_EQ(work.applied, each.applied) << what;
  }
}

class CostOfLong : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(CostOfLong, ListsIncludesTheirAcknowledgements) {
  const std::uint32_t size = GetParam();
  const reference::Problem problem = disjoint(size, "gtopk", 2048, 2048ULL * size);
  EXPECT_EQ(predicted(problem).messages(), counted(problem).messages);
  EXPECT_EQ(predicted(problem).bytes(), static_cast<double>(counted(problem).bytes));
}

TEST_P(CostOfLong, DenseTensorsIsThatOfTheRing) {
  const std::uint32_t size = GetParam();
  const reference::Problem problem = disjoint(size, "dense", 1, 16640);
  EXPECT_EQ(predicted(problem).messages(), counted(problem).messages);
  EXPECT_EQ(predicted(problem).bytes(), static_cast<double>(counted(problem).bytes));
}

INSTANTIATE_TEST_SUITE_P(Every, CostOfLong, ::testing::Values(1U, 2U, 3U, 4U, 5U, 8U));

struct Shared {
  const char* algorithm;
  std::uint32_t hosts, each;
  bool in_turn;
  std::uint64_t within, between;  // messages on the path
};

// Bytes that leave the host that sends most, apart from headers that only announce a call.
TEST(CostOfHosts, IsWhatOneOfThemSendsToTheOthers) {
  for (const Shared& shared : {
           Shared{"gtopk", 2, 4, false, 2, 1},
           Shared{"gtopk", 2, 4, true, 2, 1},
           Shared{"gtopk", 4, 2, false, 1, 2},
           Shared{"gtopk", 4, 2, true, 1, 2},
           Shared{"gtopk", 8, 1, false, 0, 3},
           Shared{"gtopk", 1, 8, false, 3, 0},
           Shared{"gtopk-placed", 2, 4, true, 4, 2},
           Shared{"gtopk-placed", 4, 2, true, 2, 3},
           Shared{"gtopk-placed", 8, 1, true, 0, 3},
           Shared{"gtopk-placed", 1, 8, false, 3, 0},
           Shared{"hierarchical", 2, 4, true, 6, 2},
           Shared{"hierarchical", 4, 2, true, 2, 3},
           Shared{"hierarchical", 1, 8, false, 15, 0},
       }) {
    const std::uint32_t size = shared.hosts * shared.each;
    reference::Problem problem = disjoint(size, shared.algorithm, 64, 64ULL * size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      problem.hosts.push_back(
          std::to_string(shared.in_turn ? rank % shared.hosts : rank / shared.each));
    }
    const Work work = predicted(problem);
    const std::string what = fmt::format("{} on {} hosts of {}{}", shared.algorithm, shared.hosts,
                                         shared.each, shared.in_turn ? ", in turn" : "");
    EXPECT_EQ(work.within.messages, shared.within) << what;
    EXPECT_EQ(work.between.messages, shared.between) << what;

    InprocRanks ranks(size, {}, problem.hosts);
    std::map<std::string, std::uint64_t> sent_by;
    ranks.fabric().set_faults([&](const transport::inproc::Sent& sent) {
      const std::string& from = problem.hosts[sent.source];
      const bool list = sent.bytes > kHeaderBytes &&
                        transport::kind_of(sent.tag) == transport::TagKind::kCollective;
      if (list && from != problem.hosts[sent.destination]) {
        sent_by[from] += sent.bytes;
      }
      return transport::inproc::Fault{};
    });
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << what;
    std::uint64_t most = 0;
    for (const auto& [host, bytes] : sent_by) {
      most = std::max(most, bytes);
    }
    const Routes routes(hosts_of(problem));
    const std::uint64_t headers =
        by_hosts(problem) ? kHeaderBytes * routes.announcement().crossing : 0;
    EXPECT_EQ(work.host_bytes, static_cast<double>(most + headers)) << what;
  }
}

TEST(Controls, HaveNoCostAndAreNeverPlanned) {
  const std::vector<std::string> names = priced();
  EXPECT_EQ(std::ranges::count(names, "random-k"), 0);
  EXPECT_EQ(std::ranges::count(names, "true-topk"), 0);
  EXPECT_GE(names.size(), 8U);
}

TEST(IndexBits, AreThoseOfTheEntropyFormula) {
  for (const auto& [n, d] :
       {std::pair{1ULL, 2ULL}, std::pair{10ULL, 10000ULL}, std::pair{999ULL, 1000ULL},
        std::pair{25'000ULL, 25'000'000ULL}, std::pair{1ULL, 1ULL << 40U}}) {
    const auto there = static_cast<double>(n);
    const auto all = static_cast<double>(d);
    const double expected =
        std::log2(all / there) - (all - there) / there * std::log1p(-there / all) / std::log(2.0);
    EXPECT_NEAR(bits_of_index(n, d), expected, 1e-3) << n << " of " << d;
  }
  EXPECT_EQ(bits_of_index(7, 7), 0);
  EXPECT_NEAR(bits_of_index(1'000, 1'000'000), 11.41, 0.01);
}

/// Gaps as in a Poisson process: each of d indices is present with probability 1/64.
reference::Problem scattered(std::uint32_t ranks, const std::string& algorithm, std::uint64_t d) {
  reference::Random random(1);
  reference::Problem problem = disjoint(ranks, algorithm, d / 64, d);
  for (reference::Input& input : problem.ranks) {
    input.gradient = reference::zeros(problem.type, d);
    for (std::uint64_t i = 0; i < d / 64;) {
      const std::uint64_t at = random.below(d);
      if (reference::load(problem.type, input.gradient, at) != 0) {
        continue;
      }
      reference::store(problem.type, input.gradient, at, 1.0 + random.uniform());
      ++i;
    }
  }
  return problem;
}

TEST(ExpectedBytes, OfCodec_AreWithinThreePercentOfBytesSent) {
  constexpr std::uint64_t kD = 1 << 18;
  constexpr std::uint64_t kN = kD / 64;
  reference::Problem problem = scattered(2, "gtopk", kD);
  for (const char* wire : {"lossless", "bf16", "fp16", "int8"}) {
    problem.options.wire = wire;
    const Work work = predicted(problem);
    InprocRanks ranks(2);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
    const auto sent = static_cast<double>(ranks.group(0)->metrics.read().bytes_sent);
    EXPECT_NEAR(work.bytes(), sent, 0.03 * sent) << wire;
    EXPECT_EQ(work.coded, 2 * kN);
  }
}

// In the second round a rank receives two lists; it adds them up, and to the sum of the first two.
TEST(ExpectedBytes, OfSelectionsInPlaceOfSumsAreWithinThreePercent) {
  constexpr std::uint64_t kD = 1 << 16;
  constexpr std::uint64_t kN = kD / 64;
  reference::Problem problem = scattered(4, "topk", kD);
  for (const char* wire : {"bf16", "4bit", "2bit", "ternary", "sign"}) {
    problem.options.wire = wire;
    const Work work = predicted(problem);
    InprocRanks ranks(4);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
    const auto sent = static_cast<double>(ranks.group(0)->metrics.read().bytes_sent);
    EXPECT_NEAR(work.bytes(), sent, 0.03 * sent) << wire;
    EXPECT_EQ(work.coded, 4 * kN);
    EXPECT_EQ(work.united, (2 + 2 + 4) * kN);
  }
}

}  // namespace
}  // namespace gtopk::sparse
