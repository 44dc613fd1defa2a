// Sparse, algorithms: messages and bytes of every rank are exactly those of
// docs/algorithms.md, as counted by the group and by the network.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/group.hpp"
#include "src/engine/host_map.hpp"
#include "src/gtopk/algorithms/departure.hpp"
#include "tests/gtopk/algorithms/ring_counts.hpp"
#include "tests/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using test::Counts;
using test::Expected;
using transport::TagKind;

/// h + n e and its counts for each list, an empty message for each long list received, and h + 8 n
/// for each message of the leaves' agreement.
Counts of_lists(const std::vector<std::uint64_t>& lists,
                const std::vector<std::uint64_t>& of_counts,
                const std::vector<std::uint64_t>& answered,
                const std::vector<std::uint64_t>& of_counts_answered, std::uint64_t entry,
                const std::vector<std::uint64_t>& agreements) {
  Counts counts;
  for (const std::uint64_t words : agreements) {
    ++counts.messages;
    counts.bytes += collectives::kHeaderBytes + 8 * words;
  }
  for (std::size_t i = 0; i < lists.size(); ++i) {
    ++counts.messages;
    counts.bytes += collectives::kHeaderBytes + lists[i] * entry + of_counts[i];
  }
  for (std::size_t i = 0; i < answered.size(); ++i) {
    if (collectives::kHeaderBytes + answered[i] * entry + of_counts_answered[i] >
        sparse::kAcknowledgedBytes) {
      ++counts.messages;
    }
  }
  return counts;
}

/// The number of messages that the page's table gives for a rank of the tree, for lists of k
/// float32 entries. For `hierarchical` and `gtopk-placed` only those with lists.
std::uint64_t messages_of(const std::string& algorithm, std::uint32_t ranks, std::uint32_t rank,
                          std::uint64_t k, const std::vector<std::string>& hosts = {}) {
  if (algorithm == "hierarchical") {
    const engine::HostMap map(hosts.empty() ? support::usual_hosts(ranks) : hosts);
    const std::uint32_t host = map.host_of(rank);
    if (map.leader(host) != rank) {
      return 1;
    }
    return map.ranks_of(host).size() - 1 + messages_of("gtopk", map.hosts(), host, k);
  }
  if (algorithm == "gtopk-placed") {
    const engine::HostMap map(hosts.empty() ? support::usual_hosts(ranks) : hosts);
    const auto members = map.ranks_of(map.host_of(rank));
    const auto inside = static_cast<std::uint32_t>(members.size());
    const auto place =
        static_cast<std::uint32_t>(std::ranges::find(members, rank) - members.begin());
    if (map.hosts() == 1) {
      return messages_of("gtopk", ranks, rank, k);
    }
    return (inside == 1 ? 0 : messages_of("gtopk-tree", inside, place, k)) +
           (place == 0 ? messages_of("gtopk", map.hosts(), map.host_of(rank), k) : 0);
  }
  if (algorithm == "dense-placed") {  // on a wire that codes nothing
    return messages_of("dense", ranks, rank, k, hosts);
  }
  const collectives::Tree tree(ranks);
  if (tree.folded_away(rank)) {
    return 1;
  }
  const std::uint64_t fold = tree.folds(rank) ? 1 : 0;
  if (algorithm == "rs-ag") {
    const auto splits = std::min<std::uint64_t>(tree.rounds(), std::bit_width(k) - 1);
    return 2ULL * tree.rounds() + splits + fold;
  }
  if (algorithm == "exact") {
    return (3 + sizeof(float)) * tree.rounds() + fold;
  }
  if (algorithm != "gtopk-tree") {
    return tree.rounds() + fold;
  }
  const std::uint32_t leaf = tree.leaf(rank);
  if (leaf == 0) {
    return tree.rounds() + fold;
  }
  return static_cast<std::uint64_t>(std::countr_zero(leaf)) + 1 + fold;
}

/// The headers that the algorithms by hosts send besides their lists; none where they equal gtopk.
std::uint64_t announcements_of(const std::string& algorithm, std::uint32_t ranks,
                               std::uint32_t rank, const std::vector<std::string>& hosts = {}) {
  const engine::HostMap map(hosts.empty() ? support::usual_hosts(ranks) : hosts);
  const bool announces = (algorithm == "hierarchical" && map.hosts() < ranks) ||
                         (algorithm == "gtopk-placed" && map.hosts() > 1 && map.hosts() < ranks);
  return announces ? messages_of("gtopk-tree", ranks, rank, 0) : 0;
}

/// Adds what one dense all-reduce of d elements takes.
void add_reduction(std::vector<Expected>& expected, std::uint64_t d, std::uint64_t element,
                   const engine::HostMap& map) {
  const auto ranks = static_cast<std::uint32_t>(expected.size());
  const bool large = d * element > collectives::kRecursiveDoublingBytes;
  const std::uint64_t message = collectives::kHeaderBytes + (large ? 0 : d * element);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t messages = messages_of("dense", ranks, rank, 0);
    for (Counts* const counts : {&expected[rank].sent, &expected[rank].received}) {
      counts->messages += messages;
      counts->bytes += messages * message;
    }
  }
  if (large) {
    test::add_rings(expected, d, element, map);
  }
}

std::vector<Expected> expected_counts(const Problem& problem) {
  const auto ranks = static_cast<std::uint32_t>(problem.ranks.size());
  const std::uint64_t element = size_of(accumulation_type(problem.type));
  const std::string& algorithm = problem.options.algorithm;
  const std::uint64_t k = std::min(problem.options.k, problem.d);
  std::vector<Expected> expected(ranks);
  if (ranks == 1) {
    return expected;
  }
  if (reference::sends_lists(algorithm)) {
    const reference::Outcome outcome = reference::all_reduce(problem);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const reference::Lists& lists = outcome.lists[rank];
      expected[rank] = {of_lists(lists.sent, lists.counts_sent, lists.received,
                                 lists.counts_received, 4 + element, lists.words),
                        of_lists(lists.received, lists.counts_received, lists.sent,
                                 lists.counts_sent, 4 + element, lists.words)};
    }
    return expected;
  }
  const engine::HostMap map(problem.hosts.empty() ? support::usual_hosts(ranks) : problem.hosts);
  const reference::SketchShape sketch(problem.d, k);
  if (algorithm == "sketch" && !sketch.dense) {
    add_reduction(expected, sketch.cells(), element, map);
    add_reduction(expected, sketch.second, element, map);
  } else {
    add_reduction(expected, algorithm == "random-k" ? k : problem.d, element, map);
  }
  return expected;
}

/// To how many others it is connected.
std::uint64_t connections_of(InprocRanks& ranks, std::uint32_t rank) {
  std::uint64_t connections = 0;
  for (std::uint32_t other = 0; other < ranks.size(); ++other) {
    const transport::PeerId peer = ranks.group(rank)->peer(other);
    connections += ranks.fabric().port(rank).connected(peer) ? 1 : 0;
  }
  return connections;
}

void expect_counts(Problem problem, std::uint64_t seed) {
  problem.options.wire = "raw";  // so that bytes follow from a list's length
  const auto size = static_cast<std::uint32_t>(problem.ranks.size());
  const std::vector<Expected> expected = expected_counts(problem);
  InprocRanks ranks(size, {.seed = seed, .eager_below = seed % 2 == 0 ? 0 : 1024UL}, problem.hosts);
  ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    SCOPED_TRACE(testing::Message() << problem.options.algorithm << " " << to_string(problem.type)
                                    << " P=" << size << " rank " << rank);
    const Statistics group = ranks.group(rank)->metrics.read();
    const auto& network = ranks.fabric().counters(rank).of(TagKind::kCollective);
    EXPECT_EQ((Counts{group.messages_sent, group.bytes_sent}), expected[rank].sent);
    EXPECT_EQ((Counts{group.messages_received, group.bytes_received}), expected[rank].received);
    EXPECT_EQ((Counts{network.messages_sent, network.bytes_sent}), expected[rank].sent);
    EXPECT_EQ((Counts{network.messages_received, network.bytes_received}), expected[rank].received);
    EXPECT_EQ(group.operations, 1U);
    EXPECT_EQ(group.notices_sent, 0U);
    // A hello to each rank that it is connected to.
    EXPECT_EQ(ranks.fabric().counters(rank).of(TagKind::kControl).messages_sent,
              connections_of(ranks, rank));
  }
  EXPECT_TRUE(ranks.close().empty());
}

/// Every rank selects exactly k, so that the page's bounds are reached.
Problem full_problem(std::uint32_t size, const std::string& algorithm, DataType type,
                     std::uint64_t d, std::uint64_t k) {
  reference::Random random(size);
  Problem problem;
  problem.type = type;
  problem.d = d;
  problem.options.k = k;
  problem.options.algorithm = algorithm;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    reference::Input input{reference::zeros(type, d), std::nullopt};
    for (std::uint64_t i = 0; i < d; ++i) {
      reference::store(type, input.gradient, i, 1.0 + random.uniform());
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

/// Whether every list has k entries if every selection has.
bool keeps_k(const std::string& algorithm) {
  return algorithm == "gtopk" || algorithm == "gtopk-tree" || algorithm == "hierarchical" ||
         algorithm == "gtopk-placed";
}

class Counted : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::string>> {};

TEST_P(Counted, MessagesAndBytesOfEveryRankAreThoseOfThePage) {
  const auto [size, algorithm] = GetParam();
  for (const DataType type : reference::kFloatingTypes) {
    expect_counts(full_problem(size, algorithm, type, 300, 30), 1);
    // Shorter lists; the reference counts only for steps that happen.
    std::uint64_t seed = size;
    Problem problem = reference::random_case(seed, type, size, algorithm).problem;
    while (!reference::all_reduce(problem).happened) {
      problem = reference::random_case(++seed, type, size, algorithm).problem;
    }
    expect_counts(problem, 2);
  }
}

TEST_P(Counted, MessagesFollowFromTheTreeAlone) {
  const auto [size, algorithm] = GetParam();
  const Problem problem = full_problem(size, algorithm, DataType::kFloat32, 300, 30);
  const std::vector<Expected> expected = expected_counts(problem);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    const std::uint64_t lists = size == 1 ? 0 : messages_of(algorithm, size, rank, 30);
    const std::uint64_t headers = announcements_of(algorithm, size, rank);
    const std::uint64_t messages = lists + headers;
    EXPECT_EQ(expected[rank].sent.messages, messages);
    EXPECT_EQ(expected[rank].received.messages, messages);
    if (keeps_k(algorithm)) {
      EXPECT_EQ(expected[rank].sent.bytes,
                64 * headers + lists * (64 + 30 * 8));  // lists of k all along
    }
  }
}

/// Under a sanitizer most time goes into the reference, which is slow for many ranks.
std::vector<std::uint32_t> rank_counts() {
  std::vector<std::uint32_t> counts(std::begin(reference::kRankCounts),
                                    std::end(reference::kRankCounts));
  if (support::kSanitized) {
    std::erase_if(counts, [](std::uint32_t count) { return count > 5; });
  }
  return counts;
}

class CountedContributors : public Counted {};

TEST_P(CountedContributors, BytesOfEveryRankAreThoseOfThePage) {
  const auto [size, algorithm] = GetParam();
  for (const DataType type : reference::kFloatingTypes) {
    for (const std::uint64_t d : {300UL, 20000UL}) {  // the longer ones are acknowledged
      Problem problem = full_problem(size, algorithm, type, d, d / 10);
      problem.options.op = ReduceOp::kAvg;
      problem.options.mean = MeanOver::kContributors;
      expect_counts(problem, 1 + d % 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, CountedContributors,
                         ::testing::Combine(::testing::ValuesIn(rank_counts()),
                                            ::testing::Values("topk", "exact")));

class CountedLists : public Counted {};

TEST_P(CountedLists, LongOnesAreAcknowledged) {
  const auto [size, algorithm] = GetParam();
  // 16,384 bytes is the longest list that is not acknowledged.
  constexpr std::uint64_t kLongest = (sparse::kAcknowledgedBytes - collectives::kHeaderBytes) / 8;
  for (const std::uint64_t k : {kLongest, kLongest + 1}) {
    const Problem problem = full_problem(size, algorithm, DataType::kFloat32, 4 * k, k);
    expect_counts(problem, 1);
    const std::vector<Expected> expected = expected_counts(problem);
    // For the algorithms whose every list has k entries.
    for (std::uint32_t rank = 0; rank < size && keeps_k(algorithm); ++rank) {
      const std::uint64_t lists = size == 1 ? 0 : messages_of(algorithm, size, rank, k);
      EXPECT_EQ(expected[rank].sent.messages,
                announcements_of(algorithm, size, rank) + (k > kLongest ? 2 * lists : lists));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Counted,
                         ::testing::Combine(::testing::ValuesIn(rank_counts()),
                                            ::testing::ValuesIn(reference::algorithms())));

INSTANTIATE_TEST_SUITE_P(Every, CountedLists,
                         ::testing::Combine(::testing::ValuesIn(rank_counts()),
                                            ::testing::Values("gtopk", "gtopk-tree", "topk",
                                                              "rs-ag", "exact", "hierarchical",
                                                              "gtopk-placed")));

/// How many other ranks a rank exchanges lists with.
std::uint64_t partners_of(const std::string& algorithm, std::uint32_t ranks, std::uint32_t rank) {
  return messages_of(algorithm == "gtopk-tree" ? algorithm : "gtopk", ranks, rank, 30);
}

// log2 P of them with gtopk, and one more where a rank is folded.
TEST(CountedConnections, AreExactlyOnePerListPartner) {
  for (const char* const algorithm : {"gtopk", "gtopk-tree", "topk", "rs-ag", "exact"}) {
    for (const std::uint32_t size : {1U, 2U, 6U, 7U, 64U}) {
      SCOPED_TRACE(testing::Message() << algorithm << " P=" << size);
      InprocRanks ranks(size, {.seed = size});
      const Problem problem = full_problem(size, algorithm, DataType::kFloat32, 300, 30);
      ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        const std::uint64_t partners = size == 1 ? 0 : partners_of(algorithm, size, rank);
        EXPECT_EQ(connections_of(ranks, rank), partners) << "rank " << rank;
        if (size == 64 && std::string(algorithm) == "gtopk") {
          EXPECT_EQ(partners, 6U);
        }
      }
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

// A host's other ranks send one list each to their leader, or what gtopk-tree would send among
// them; leaders exchange what gtopk would among that many ranks.
TEST(CountedHosts, Leaders_ExchangeWhatGtopkWouldAmongHosts) {
  for (const auto& [algorithm, hosts, each] : {std::tuple{"hierarchical", 2U, 4U},
                                               {"hierarchical", 4U, 2U},
                                               {"hierarchical", 1U, 5U},
                                               {"hierarchical", 5U, 1U},
                                               {"hierarchical", 3U, 3U},
                                               {"hierarchical", 5U, 2U},
                                               {"gtopk-placed", 2U, 4U},
                                               {"gtopk-placed", 4U, 2U},
                                               {"gtopk-placed", 1U, 5U},
                                               {"gtopk-placed", 5U, 1U},
                                               {"gtopk-placed", 3U, 3U},
                                               {"gtopk-placed", 2U, 6U}}) {
    Problem problem = full_problem(hosts * each, algorithm, DataType::kFloat32, 300, 30);
    problem.hosts = support::hosts_of(hosts * each, each);
    expect_counts(problem, hosts);
    const std::vector<Expected> expected = expected_counts(problem);
    for (std::uint32_t rank = 0; rank < hosts * each; ++rank) {
      const std::uint64_t lists = messages_of(algorithm, hosts * each, rank, 30, problem.hosts);
      const std::uint64_t headers = announcements_of(algorithm, hosts * each, rank, problem.hosts);
      EXPECT_EQ(expected[rank].sent,
                (Counts{headers + lists, 64 * headers + lists * (64 + 30 * 8)}));
      EXPECT_EQ(expected[rank].received, expected[rank].sent);
    }
  }
}

TEST(CountedDense, TheRingSendsEachElementTwiceLessTwoChunks) {
  expect_counts(full_problem(3, "true-topk", DataType::kFloat32, 16400, 5), 3);
  expect_counts(full_problem(3, "random-k", DataType::kFloat32, 40000, 16400), 3);
  for (const std::uint32_t size : {1U, 2U, 3U, 4U, 5U, 8U}) {
    expect_counts(full_problem(size, "dense", DataType::kFloat32, 16385 + size, 1), size);
  }
  expect_counts(full_problem(3, "dense", DataType::kFloat64, 250001, 1), 3);
}

TEST(CountedDense, HostsOfOneSizeExchangeWhatTheirRanksHaveAddedUp) {
  for (const auto& [ranks, each] : {std::pair{4U, 2U}, {6U, 2U}, {6U, 3U}, {8U, 4U}}) {
    for (const std::uint64_t d : {std::uint64_t{16389}, std::uint64_t{34000} * ranks}) {
      Problem problem = full_problem(ranks, "dense", DataType::kFloat32, d, 1);
      problem.hosts = support::hosts_of(ranks, each);
      expect_counts(problem, ranks + each);
    }
  }
}

// 58 k values in two all-reduces if that is fewer than d; otherwise d in one.
TEST(CountedSketch, SendsItsCellsAndThenTheValuesOfTheHeaviest) {
  for (const std::uint32_t size : {1U, 2U, 3U, 4U, 5U, 8U}) {
    for (const std::uint64_t d : {58UL, 59UL}) {
      const Problem problem = full_problem(size, "sketch", DataType::kFloat32, d, 1);
      expect_counts(problem, size);
      const Expected rank_0 = expected_counts(problem)[0];
      const std::uint64_t messages = size == 1 ? 0 : messages_of("dense", size, 0, 0);
      EXPECT_EQ(rank_0.sent,
                (d == 58 ? Counts{messages, messages * (64 + 4 * 58)}
                         : Counts{2 * messages, messages * (64 + 4 * 50 + 64 + 4 * 8)}));
    }
  }
  expect_counts(full_problem(3, "sketch", DataType::kFloat32, 20000, 330), 3);  // cells by the ring
  expect_counts(full_problem(3, "sketch", DataType::kFloat64, 60000, 1030), 4);  // values, too
}

}  // namespace
}  // namespace gtopk
