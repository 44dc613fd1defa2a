// Engine: hosts are numbered in the order of their lowest ranks, whatever their names, and every
// rank is on one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "src/engine/host_map.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/inproc_ranks.hpp"

namespace gtopk::engine {
namespace {

using testing::ElementsAre;

TEST(HostMap, NumbersHostsInTheOrderOfTheirLowestRanks) {
  const std::vector<std::string> names = {"z", "a", "z", "m", "a", "z"};
  const HostMap map(names);
  EXPECT_EQ(map.ranks(), 6U);
  ASSERT_EQ(map.hosts(), 3U);
  EXPECT_THAT(map.ranks_of(0), ElementsAre(0, 2, 5));
  EXPECT_THAT(map.ranks_of(1), ElementsAre(1, 4));
  EXPECT_THAT(map.ranks_of(2), ElementsAre(3));
  EXPECT_EQ(map.leader(0), 0U);
  EXPECT_EQ(map.leader(1), 1U);
  EXPECT_EQ(map.leader(2), 3U);
}

TEST(HostMap, OfNoNamesHasNoHosts) {
  EXPECT_EQ(HostMap(std::vector<std::string>()).hosts(), 0U);
  EXPECT_EQ(HostMap::apart(0).ranks(), 0U);
}

TEST(HostMap, HasEachRankOnceAndLeadersAscend) {
  reference::Random random(1);
  for (std::uint32_t ranks = 1; ranks < 40; ++ranks) {
    std::vector<std::string> names;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      names.push_back(std::to_string(random.below(1 + ranks / 3)));
    }
    const HostMap map(names);
    std::uint32_t seen = 0;
    for (std::uint32_t host = 0; host < map.hosts(); ++host) {
      const auto members = map.ranks_of(host);
      ASSERT_FALSE(members.empty());
      EXPECT_TRUE(std::ranges::is_sorted(members));
      EXPECT_EQ(map.leader(host), members.front());
      if (host > 0) {
        EXPECT_LT(map.leader(host - 1), map.leader(host));
      }
      for (const std::uint32_t rank : members) {
        EXPECT_EQ(map.host_of(rank), host);
        EXPECT_EQ(names[rank], names[members.front()]);
      }
      seen += static_cast<std::uint32_t>(members.size());
    }
    EXPECT_EQ(seen, ranks);
  }
}

TEST(HostMap, OfRanksApartHasAHostForEach) {
  const HostMap map = HostMap::apart(5);
  ASSERT_EQ(map.hosts(), 5U);
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(map.host_of(rank), rank);
    EXPECT_THAT(map.ranks_of(rank), ElementsAre(rank));
  }
}

TEST(HostMap, OfAGroupNeedsANameForEachRankOrNone) {
  support::InprocRanks ranks(2);
  GroupSpec spec;
  spec.name = "half named";
  spec.cards = {ranks.fabric().port(0).address(), ranks.fabric().port(1).address()};
  spec.ids = {ranks.engine(0).reserve_group_id(), ranks.engine(1).reserve_group_id()};
  spec.hosts = {"only one"};
  try {
    static_cast<void>(ranks.engine(0).add_group(spec));
    FAIL() << "a group with one name for two ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("host names: 1"));
  }
  spec.hosts = {"one", "one"};
  EXPECT_EQ(ranks.engine(0).add_group(spec)->hosts().hosts(), 1U);
}

}  // namespace
}  // namespace gtopk::engine
