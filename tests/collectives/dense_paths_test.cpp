// Collectives: which of two ways is predicted to be the quicker, for links and hosts of many kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "src/collectives/dense_paths.hpp"
#include "tests/support/hosts.hpp"

namespace gtopk::collectives {
namespace {

DensePaths ways_of_letters(const std::string& letters) {
  return DensePaths(engine::HostMap(support::hosts_of(letters)));
}

/// Of links where every message costs alpha, and a rank's further ones nothing.
PathCosts latency(double steps, double alpha, double byte) {
  return {.tree = steps * alpha, .direct = alpha, .byte = byte};
}

TEST(DensePaths, ReduceDirectlyWhereBytesCostMoreThanMessages) {
  const DensePaths four = ways_of_letters("abcd");
  // Along the tree 2 alpha + 2 b beta, directly 2 alpha' + 1.5 b beta.
  const PathCosts costs{.tree = 200e3, .direct = 160e3, .byte = 80};
  EXPECT_FALSE(four.reduce_directly(2048, costs));
  EXPECT_TRUE(four.reduce_directly(4096, costs));
  EXPECT_FALSE(four.reduce_directly(65536, {.tree = 200e3, .direct = 160e3, .byte = 1}));
  // Three ranks: the tree folds, which takes three messages of all bytes one after the other.
  const DensePaths three = ways_of_letters("abc");
  EXPECT_TRUE(three.reduce_directly(2048, latency(3, 50e3, 8)));
}

TEST(DensePaths, ReduceScatterDirectlySendsEachRankOnlyItsPart) {
  const PathCosts costs{.tree = 200e3, .direct = 300e3, .byte = 8};
  // 2 b beta against 3/4 b beta.
  EXPECT_FALSE(ways_of_letters("abcd").reduce_scatter_directly(9000, costs));
  EXPECT_TRUE(ways_of_letters("abcd").reduce_scatter_directly(11000, costs));
  EXPECT_TRUE(ways_of_letters("ab").reduce_scatter_directly(2000, latency(1, 50e3, 8)));
}

// Ranks that share a link send all of it over that link.
TEST(DensePaths, CountWhatRanksOfAHostSendOverItsLink) {
  EXPECT_EQ(ways_of_letters("aaaa").direct_messages(), 3);
  EXPECT_EQ(ways_of_letters("abcd").direct_messages(), 3);
  EXPECT_EQ(ways_of_letters("aabb").direct_messages(), 4);
  EXPECT_EQ(ways_of_letters("aaab").direct_messages(), 3);
  const PathCosts costs = latency(2, 50e3, 80);
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

TEST(DensePaths, BroadcastDownAChainOnceItIsLongComparedWithAPiece) {
  const PathCosts slow = latency(2, 50e3, 80);
  EXPECT_FALSE(ways_of_letters("aabb").broadcast_down_a_chain(1 << 20, slow));
  EXPECT_TRUE(ways_of_letters("abc").broadcast_down_a_chain(1 << 20, slow));
  EXPECT_FALSE(ways_of_letters("abcdefgh").broadcast_down_a_chain(32768, slow));
  EXPECT_TRUE(ways_of_letters("abcdefgh").broadcast_down_a_chain(1 << 20, slow));
  const std::string many = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  EXPECT_FALSE(ways_of_letters(many).broadcast_down_a_chain(1 << 20, latency(6, 50e3, 80)));
  EXPECT_TRUE(ways_of_letters(many).broadcast_down_a_chain(64 << 20, latency(6, 50e3, 80)));
}

TEST(DensePaths, Broadcast_IsDirectWhereCheaperThanTree) {
  const PathCosts three{.tree = 90e3, .direct = 45e3, .byte = 0.3};
  EXPECT_TRUE(ways_of_letters("aaa").broadcast_directly(16384, three));
  // As many messages of all bytes at once: the root's link takes three, along the tree two.
  const DensePaths four = ways_of_letters("abcd");
  EXPECT_TRUE(four.broadcast_directly(4096, {.tree = 100e3, .direct = 60e3, .byte = 8}));
  EXPECT_FALSE(four.broadcast_directly(16384, {.tree = 100e3, .direct = 60e3, .byte = 8}));
  // Two of the root's three messages leave its host, and along the tree two as well.
  EXPECT_TRUE(ways_of_letters("aabb").broadcast_directly(
      16384, {.tree = 100e3, .direct = 60e3, .byte = 8}));
  const DensePaths two = ways_of_letters("ab");
  EXPECT_FALSE(two.broadcast_directly(4096, two.usual()));
}

TEST(DensePaths, AreNotDirectWhereEveryRankWouldConnectToMany) {
  const PathCosts costs{.tree = 1e9, .direct = 1, .byte = 1};
  const std::string most(DensePaths::kMostRanks, 'a');
  EXPECT_TRUE(ways_of_letters(most).reduce_directly(4096, costs));
  const DensePaths more = ways_of_letters(most + "a");
  EXPECT_FALSE(more.reduce_directly(4096, costs));
  EXPECT_FALSE(more.reduce_scatter_directly(4096, costs));
  EXPECT_FALSE(more.gather_directly(4096, costs));
  EXPECT_FALSE(more.broadcast_directly(4096, costs));
}

TEST(DensePaths, TakeTheUsualCostsForLinksOfTheirKind) {
  const DensePaths inside = ways_of_letters("aaaa");
  const DensePaths outside = ways_of_letters("abcd");
  EXPECT_LT(inside.usual().byte, outside.usual().byte);
  EXPECT_LT(inside.usual().direct, outside.usual().direct);
  EXPECT_FALSE(inside.reduce_directly(16384, inside.usual()));
  EXPECT_TRUE(outside.reduce_directly(65536, outside.usual()));
}

TEST(PathSetting, IsReadFromTheEnvironment) {
  const auto setting = [](const char* value) {
    setenv("GTOPK_DENSE", value, 1);
    return path_setting();
  };
  EXPECT_EQ(setting("tree"), PathSetting::kTree);
  EXPECT_EQ(setting("direct"), PathSetting::kDirect);
  EXPECT_EQ(setting("auto"), PathSetting::kAuto);
  EXPECT_EQ(setting(""), PathSetting::kAuto);
  try {
    static_cast<void>(setting("ring"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("GTOPK_DENSE is 'ring': expected auto, tree or direct"));
  }
  unsetenv("GTOPK_DENSE");
  EXPECT_EQ(path_setting(), PathSetting::kAuto);
}

}  // namespace
}  // namespace gtopk::collectives
