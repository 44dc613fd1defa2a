// Collectives: large ones where ranks share hosts, over the in-process transport: neighbours,
// ranks dealt out in turn, hosts of different sizes.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/broadcast_tree.hpp"
#include "src/collectives/host_rings.hpp"
#include "src/collectives/reduction.hpp"
#include "tests/collectives/definitions.hpp"
#include "tests/collectives/parts.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/inproc_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using collectives::BetweenHosts;
using collectives::BroadcastTree;
using collectives::HostRings;
using collectives::Ring;
using engine::HostMap;
using support::hosts_of;
using support::InprocRanks;
using test::before;
using test::buffers;
using test::expect_good;
using test::Hosts;
using test::layouts;
using test::network;
using test::Sizes;
using test::total;

constexpr std::string_view kAlike[] = {"aabb",     "abab",      "abba",     "aaabbb",   "ababab",
                                       "aabbcc",   "abcabc",    "aaaabbbb", "abababab", "aabbccdd",
                                       "abcdabcd", "aaabbbccc", "abcbcacab"};
constexpr std::string_view kOthers[] = {"a",    "ab",     "aab",     "aba",     "abc",
                                        "aaab", "abcabb", "aabbccc", "abacadd", "abcdefaa"};

std::vector<std::string_view> all_maps() {
  if (support::kSanitized) {
    return {"aabb", "ababab", "aab", "abcabb"};
  }
  std::vector<std::string_view> maps(std::begin(kAlike), std::end(kAlike));
  maps.insert(maps.end(), std::begin(kOthers), std::end(kOthers));
  return maps;
}

class ByHosts : public ::testing::TestWithParam<std::string_view> {
 protected:
  const Hosts hosts_ = hosts_of(GetParam());
  const std::uint32_t size_ = static_cast<std::uint32_t>(hosts_.size());

  std::vector<reference::Bytes> random_inputs(std::uint64_t d, DataType type,
                                              std::uint64_t seed) const {
    reference::Random random(seed);
    std::vector<reference::Bytes> inputs;
    while (inputs.size() < size_) {
      inputs.push_back(test::random_elements(random, d, type));
    }
    return inputs;
  }
};

/// Just above the limit, and with several pieces in a chunk.
std::vector<std::uint64_t> large(std::uint32_t ranks) {
  return {collectives::kRecursiveDoublingBytes / 4 + 3,
          5 * collectives::kPieceBytes / 16 * ranks + 7};
}

TEST_P(ByHosts, AllReduceIsItsDefinition) {
  const std::vector<std::pair<DataType, ReduceOp>> kinds = {
      {DataType::kFloat32, ReduceOp::kSum},   {DataType::kFloat64, ReduceOp::kAvg},
      {DataType::kBfloat16, ReduceOp::kSum},  {DataType::kFloat32, ReduceOp::kPremulSum},
      {DataType::kComplex64, ReduceOp::kSum}, {DataType::kInt64, ReduceOp::kMax}};
  std::uint64_t seed = 1;
  for (const std::uint64_t d : large(size_)) {
    for (const auto& [type, op] : kinds) {
      const std::uint64_t elements = std::max<std::uint64_t>(
          d * 4 / size_of(type), collectives::kRecursiveDoublingBytes / size_of(type) + 1);
      SCOPED_TRACE(fmt::format("{} elements, {}, {}, seed {}", elements, to_string(type),
                               to_string(op), ++seed));
      std::vector<reference::Bytes> data = random_inputs(elements, type, seed);
      const reference::Bytes expected =
          test::defined_all_reduce(test::multiplied(data, type, op), elements, type, op, hosts_);
      InprocRanks ranks(size_, network(seed), hosts_);
      expect_good(ranks.run([&, type = type, op = op](std::uint32_t rank) {
        return gtopk::all_reduce({data[rank].data(), elements, type}, op,
                                 test::factor_of(rank, op));
      }));
      for (std::uint32_t rank = 0; rank < size_; ++rank) {
        ASSERT_TRUE(data[rank] == expected) << "rank " << rank;
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

TEST_P(ByHosts, ReduceScatterIsItsDefinitionForEveryLayout) {
  constexpr DataType kType = DataType::kFloat32;
  std::uint64_t seed = 1;
  for (const std::uint64_t mean :
       {collectives::kRecursiveDoublingBytes / 4, 5 * collectives::kPieceBytes / 16}) {
    for (const Sizes& sizes : layouts(size_, mean)) {
      SCOPED_TRACE(fmt::format("mean {}, seed {}", mean, ++seed));
      std::vector<reference::Bytes> inputs = random_inputs(total(sizes), kType, seed);
      const std::vector<reference::Bytes> untouched = inputs;
      std::vector<reference::Bytes> outputs;
      for (const std::uint64_t part : sizes) {
        outputs.emplace_back(part * size_of(kType));
      }
      InprocRanks ranks(size_, network(seed), hosts_);
      expect_good(ranks.run([&](std::uint32_t rank) {
        return gtopk::reduce_scatter(buffers(inputs[rank], sizes, kType),
                                     {outputs[rank].data(), sizes[rank], kType});
      }));
      for (std::uint32_t rank = 0; rank < size_; ++rank) {
        ASSERT_TRUE(inputs[rank] == untouched[rank]) << "rank " << rank;
        ASSERT_TRUE(outputs[rank] == test::ring_sum(untouched, rank, before(sizes, rank),
                                                    sizes[rank], kType, ReduceOp::kSum, hosts_))
            << "rank " << rank;
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

TEST_P(ByHosts, ReduceGivesTheRootTheBitsOfTheAllReduce) {
  constexpr DataType kType = DataType::kFloat32;
  const std::uint64_t d = large(size_).front();
  for (std::uint32_t root = 0; root < size_; ++root) {
    SCOPED_TRACE(fmt::format("root {}", root));
    std::vector<reference::Bytes> data = random_inputs(d, kType, root + 1);
    std::vector<reference::Bytes> expected = data;
    expected[root] = test::defined_all_reduce(data, d, kType, ReduceOp::kSum, hosts_);
    InprocRanks ranks(size_, network(root), hosts_);
    expect_good(ranks.run([&](std::uint32_t rank) {
      return gtopk::reduce({data[rank].data(), d, kType}, root, ReduceOp::kSum);
    }));
    ASSERT_TRUE(data == expected);
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST_P(ByHosts, AllGatherCollectsPartsOfAnySizes) {
  for (const Sizes& sizes : layouts(size_, 5000)) {
    test::expect_all_gather(sizes, hosts_);
  }
}

TEST_P(ByHosts, BroadcastReachesEveryRankFromEveryRoot) {
  for (std::uint32_t root = 0; root < size_; ++root) {
    std::vector<reference::Bytes> data(size_, reference::Bytes(5 * kShortBroadcast));
    for (std::size_t i = 0; i < data[root].size(); ++i) {
      data[root][i] = static_cast<std::byte>(i * 7 + root + i / 256);
    }
    const reference::Bytes expected = data[root];
    InprocRanks ranks(size_, network(root), hosts_);
    expect_good(ranks.run([&](std::uint32_t rank) { return gtopk::broadcast(data[rank], root); }));
    for (const reference::Bytes& bytes : data) {
      ASSERT_TRUE(bytes == expected) << "root " << root;
    }
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST_P(ByHosts, ABroadcastEntersEachHostOnce) {
  const HostMap map(hosts_);
  for (std::uint32_t call = 0; call < 2 * size_; ++call) {
    const std::uint32_t root = call / 2;
    const auto between = call % 2 == 0 ? BetweenHosts::kTree : BetweenHosts::kChain;
    std::vector<std::uint32_t> entered(map.hosts());
    std::set<std::uint32_t> reached = {root};
    std::vector<std::uint32_t> next = {root};
    while (!next.empty()) {
      const std::uint32_t from = next.back();
      next.pop_back();
      const BroadcastTree tree(map, root, from, between);
      for (const std::uint32_t to : tree.children()) {
        EXPECT_EQ(BroadcastTree(map, root, to, between).parent(), from);
        EXPECT_TRUE(reached.insert(to).second) << "root " << root << ": twice to rank " << to;
        entered[map.host_of(to)] += map.host_of(from) == map.host_of(to) ? 0 : 1;
        next.push_back(to);
      }
    }
    EXPECT_EQ(reached.size(), size_);
    EXPECT_FALSE(BroadcastTree(map, root, root, between).parent());
    for (std::uint32_t host = 0; host < map.hosts(); ++host) {
      EXPECT_EQ(entered[host], host == map.host_of(root) ? 0U : 1U) << "root " << root;
    }
  }
}

TEST_P(ByHosts, TheRingThroughAllRanksLeavesEachHostOnce) {
  const HostMap map(hosts_);
  std::vector<std::uint32_t> left(map.hosts());
  const HostRings rings(map, 0);
  const Ring all = rings.all();
  ASSERT_EQ(std::set<std::uint32_t>(all.ranks.begin(), all.ranks.end()).size(), size_);
  for (std::uint32_t place = 0; place < size_; ++place) {
    const std::uint32_t from = all.ranks[place];
    const std::uint32_t to = all.ranks[(place + 1) % size_];
    left[map.host_of(from)] += map.host_of(from) == map.host_of(to) ? 0 : 1;
    const HostRings own(map, from);
    EXPECT_EQ(own.all().place, place);
    EXPECT_TRUE(std::ranges::equal(own.all().ranks, all.ranks));
  }
  for (const std::uint32_t times : left) {
    EXPECT_EQ(times, map.hosts() == 1 ? 0U : 1U);
  }
}

INSTANTIATE_TEST_SUITE_P(Maps, ByHosts, ::testing::ValuesIn(all_maps()),
                         [](const auto& info) { return std::string(info.param); });

TEST(HostRings, AreOfTwoLevelsIfHostsAreAlike) {
  for (const std::string_view letters : kAlike) {
    const HostMap map(hosts_of(letters));
    for (std::uint32_t rank = 0; rank < map.ranks(); ++rank) {
      const HostRings rings(map, rank);
      ASSERT_TRUE(rings.two_levels()) << letters;
      EXPECT_TRUE(std::ranges::equal(rings.within().ranks, map.ranks_of(map.host_of(rank))));
      EXPECT_EQ(rings.within().ranks[rings.within().place], rank);
      EXPECT_EQ(rings.across().ranks[rings.across().place], rank);
      for (std::uint32_t host = 0; host < map.hosts(); ++host) {
        EXPECT_EQ(rings.across().ranks[host], map.ranks_of(host)[rings.within().place]);
        EXPECT_EQ(rings.rank_at(host, rings.within().place), rings.across().ranks[host]);
      }
    }
  }
  for (const std::string_view letters : kOthers) {
    EXPECT_FALSE(HostRings(HostMap(hosts_of(letters)), 0).two_levels()) << letters;
  }
}

// What a rank sends: 2 (R-1)/R of d elements inside its host, 2 (H-1)/H of d/R of them across.
TEST(HostRings, OfTwoLevelsSendAcrossHostsWhatOneRankOfAHostWould) {
  for (const auto& [letters, hosts, each] :
       {std::tuple{"aabb", 2U, 2U}, {"aaaabbbb", 2U, 4U}, {"abcdabcd", 4U, 2U}}) {
    const std::uint32_t size = hosts * each;
    const std::uint64_t d = 10'000ULL * size;
    std::vector<std::vector<float>> data(size, std::vector<float>(d, 1.0F));
    InprocRanks ranks(size, {}, hosts_of(letters));
    const auto bytes_sent = [&](std::uint32_t rank) {
      return ranks.group(rank)->metrics.read().bytes_sent;
    };
    expect_good(ranks.run([](std::uint32_t) { return gtopk::barrier(); }));
    std::vector<std::uint64_t> agreement;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      agreement.push_back(bytes_sent(rank));
    }
    expect_good(ranks.run([&](std::uint32_t rank) {
      return gtopk::all_reduce(data[rank].data(), d, DataType::kFloat32);
    }));
    const std::uint64_t inside = 2 * d * (each - 1) / each;
    const std::uint64_t across = 2 * d / each * (hosts - 1) / hosts;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(bytes_sent(rank), 2 * agreement[rank] + 4 * (inside + across)) << letters;
      EXPECT_EQ(data[rank][rank], static_cast<float>(size));
    }
    ASSERT_TRUE(ranks.close().empty());
  }
}

}  // namespace
}  // namespace gtopk
