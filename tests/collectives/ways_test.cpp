// Collectives: which of two ways is predicted to be the quicker, for links and hosts of many kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "src/collectives/ways.hpp"
#include "tests/support/hosts.hpp"

namespace gtopk::collectives {
namespace {

Ways ways_of_letters(const std::string& letters) {
  return Ways(engine::HostMap(support::hosts_of(letters)));
}

/// Of links where every message costs alpha, and a rank's further ones nothing.
WayCosts latency(double steps, double alpha, double byte) {
  return {.tree = steps * alpha, .direct = alpha, .byte = byte};
}

TEST(Ways, ReduceDirectlyWhereBytesCostMoreThanMessages) {
  const Ways four = ways_of_letters("abcd");
  // Along the tree 2 alpha + 2 b beta, directly 2 alpha' + 1.5 b beta.
  const WayCosts costs{.tree = 200e3, .direct = 160e3, .byte = 80};
  EXPECT_FALSE(four.reduce_directly(2048, costs));
  EXPECT_TRUE(four.reduce_directly(4096, costs));
  EXPECT_FALSE(four.reduce_directly(65536, {.tree = 200e3, .direct = 160e3, .byte = 1}));
  // Three ranks: the tree folds, which takes three messages of all bytes one after the other.
  const Ways three = ways_of_letters("abc");
  EXPECT_TRUE(three.reduce_directly(2048, latency(3, 50e3, 8)));
}

TEST(Ways, ReduceScatterDirectlySendsEachRankOnlyItsPart) {
  const WayCosts costs{.tree = 200e3, .direct = 300e3, .byte = 8};
  // 2 b beta against 3/4 b beta.
  EXPECT_FALSE(ways_of_letters("abcd").reduce_scatter_directly(9000, costs));
  EXPECT_TRUE(ways_of_letters("abcd").reduce_scatter_directly(11000, costs));
  EXPECT_TRUE(ways_of_letters("ab").reduce_scatter_directly(2000, latency(1, 50e3, 8)));
}

// Ranks that share a link send all of it over that link.
TEST(Ways, CountWhatRanksOfAHostSendOverItsLink) {
  EXPECT_EQ(ways_of_letters("aaaa").direct_messages(), 3);
  EXPECT_EQ(ways_of_letters("abcd").direct_messages(), 3);
  EXPECT_EQ(ways_of_letters("aabb").direct_messages(), 4);
  EXPECT_EQ(ways_of_letters("aaab").direct_messages(), 3);
  const WayCosts costs = latency(2, 50e3, 80);
  // Directly all bytes leave a host, round the rings half of them.
  EXPECT_FALSE(ways_of_letters("aabb").gather_directly(65536, costs));
  EXPECT_TRUE(ways_of_letters("aabb").gather_directly(1024, costs));
  EXPECT_TRUE(ways_of_letters("abcd").gather_directly(65536, costs));
  // 12/7 of all bytes, round one ring 6/7 of them.
  EXPECT_FALSE(ways_of_letters("aaaabbb").gather_directly(65536, costs));
  EXPECT_TRUE(ways_of_letters("aaaabbb").share_links());
  EXPECT_FALSE(ways_of_letters("aaaa").share_links());
  EXPECT_FALSE(ways_of_letters("abcd").share_links());
}

TEST(Ways, BroadcastDownAChainOnceItIsLongComparedWithAPiece) {
  const WayCosts slow = latency(2, 50e3, 80);
  EXPECT_FALSE(ways_of_letters("aabb").broadcast_down_a_chain(1 << 20, slow));
  EXPECT_TRUE(ways_of_letters("abc").broadcast_down_a_chain(1 << 20, slow));
  EXPECT_FALSE(ways_of_letters("abcdefgh").broadcast_down_a_chain(32768, slow));
  EXPECT_TRUE(ways_of_letters("abcdefgh").broadcast_down_a_chain(1 << 20, slow));
  const std::string many = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  EXPECT_FALSE(ways_of_letters(many).broadcast_down_a_chain(1 << 20, latency(6, 50e3, 80)));
  EXPECT_TRUE(ways_of_letters(many).broadcast_down_a_chain(64 << 20, latency(6, 50e3, 80)));
}

TEST(Ways, BroadcastDirectlyWhereTheTreeHasManyMessagesOneAfterTheOther) {
  const WayCosts three{.tree = 90e3, .direct = 45e3, .byte = 0.3};
  EXPECT_TRUE(ways_of_letters("aaa").broadcast_directly(16384, three));
  // As many messages of all bytes at once: the root's link takes three, along the tree two.
  const Ways four = ways_of_letters("abcd");
  EXPECT_TRUE(four.broadcast_directly(4096, {.tree = 100e3, .direct = 60e3, .byte = 8}));
  EXPECT_FALSE(four.broadcast_directly(16384, {.tree = 100e3, .direct = 60e3, .byte = 8}));
  // Two of the root's three messages leave its host, and along the tree two as well.
  EXPECT_TRUE(ways_of_letters("aabb").broadcast_directly(
      16384, {.tree = 100e3, .direct = 60e3, .byte = 8}));
  const Ways two = ways_of_letters("ab");
  EXPECT_FALSE(two.broadcast_directly(4096, two.usual()));
}

TEST(Ways, AreNotDirectWhereEveryRankWouldConnectToMany) {
  const WayCosts costs{.tree = 1e9, .direct = 1, .byte = 1};
  const std::string most(Ways::kMostRanks, 'a');
  EXPECT_TRUE(ways_of_letters(most).reduce_directly(4096, costs));
  const Ways more = ways_of_letters(most + "a");
  EXPECT_FALSE(more.reduce_directly(4096, costs));
  EXPECT_FALSE(more.reduce_scatter_directly(4096, costs));
  EXPECT_FALSE(more.gather_directly(4096, costs));
  EXPECT_FALSE(more.broadcast_directly(4096, costs));
}

TEST(Ways, TakeTheUsualCostsForLinksOfTheirKind) {
  const Ways inside = ways_of_letters("aaaa");
  const Ways outside = ways_of_letters("abcd");
  EXPECT_LT(inside.usual().byte, outside.usual().byte);
  EXPECT_LT(inside.usual().direct, outside.usual().direct);
  EXPECT_FALSE(inside.reduce_directly(16384, inside.usual()));
  EXPECT_TRUE(outside.reduce_directly(65536, outside.usual()));
}

TEST(WaySetting, IsReadFromTheEnvironment) {
  const auto setting = [](const char* value) {
    setenv("GTOPK_DENSE", value, 1);
    return way_setting();
  };
  EXPECT_EQ(setting("tree"), WaySetting::kTree);
  EXPECT_EQ(setting("direct"), WaySetting::kDirect);
  EXPECT_EQ(setting("auto"), WaySetting::kAuto);
  EXPECT_EQ(setting(""), WaySetting::kAuto);
  try {
    static_cast<void>(setting("ring"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("GTOPK_DENSE is 'ring': expected auto, tree or direct"));
  }
  unsetenv("GTOPK_DENSE");
  EXPECT_EQ(way_setting(), WaySetting::kAuto);
}

}  // namespace
}  // namespace gtopk::collectives
