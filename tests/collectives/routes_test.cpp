// Collectives: which steps cross between hosts, and how many ranks of a host share its link
// in each.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/collectives/routes.hpp"
#include "tests/support/hosts.hpp"

namespace gtopk::collectives {
namespace {

Routes routes_of(const std::string& letters) {
  return Routes(engine::HostMap(support::hosts_of(letters)));
}

using Crossing = std::vector<std::uint32_t>;

Crossing swaps(const std::string& letters) {
  const Routes routes = routes_of(letters);
  Crossing all;
  for (std::uint32_t round = 0; round < routes.tree().rounds(); ++round) {
    all.push_back(routes.swap(round).crossing);
  }
  return all;
}

Crossing hand_overs(const std::string& letters) {
  const Routes routes = routes_of(letters);
  Crossing all;
  for (std::uint32_t round = 0; round < routes.tree().rounds(); ++round) {
    all.push_back(routes.hand_over(round).crossing);
  }
  return all;
}

TEST(Routes, OfSwapsCountTheRanksOfAHostThatCrossInEachRound) {
  EXPECT_EQ(swaps("a"), Crossing{});
  EXPECT_EQ(swaps("aaaa"), (Crossing{0, 0}));
  EXPECT_EQ(swaps("abcd"), (Crossing{1, 1}));
  EXPECT_EQ(swaps("aaaabbbb"), (Crossing{0, 0, 4}));
  EXPECT_EQ(swaps("abababab"), (Crossing{4, 0, 0}));
  EXPECT_EQ(swaps("aabbccdd"), (Crossing{0, 2, 2}));
  EXPECT_EQ(swaps("abcdabcd"), (Crossing{2, 2, 0}));
  // Uneven: one rank of the large host swaps with the small one, the others with each other.
  EXPECT_EQ(swaps("aaab"), (Crossing{1, 1}));
}

TEST(Routes, OfFoldsAndUnevenLeavesCountThoseThatHaveAPart) {
  // Five ranks: 0 and 1 fold; leaves are ranks 0, 2, 3, 4.
  EXPECT_EQ(routes_of("abaab").fold().crossing, 1U);
  EXPECT_EQ(routes_of("aabab").fold().crossing, 0U);
  EXPECT_EQ(swaps("aabab"), (Crossing{2, 0}));
  // Seven: three pairs fold, all to the same host.
  EXPECT_EQ(routes_of("abababc").fold().crossing, 3U);
  EXPECT_EQ(routes_of("abcdefg").fold().crossing, 1U);
}

TEST(Routes, OfABinomialTreeCountOneRankOfEachPairOfSubtrees) {
  EXPECT_EQ(hand_overs("aaaabbbb"), (Crossing{0, 0, 1}));
  EXPECT_EQ(hand_overs("abababab"), (Crossing{4, 0, 0}));
  EXPECT_EQ(hand_overs("abcdabcd"), (Crossing{2, 2, 0}));
  // Two hosts send to one: what comes in counts as well.
  EXPECT_EQ(hand_overs("abac"), (Crossing{2, 0}));
}

TEST(Routes, OfARingCountTheBordersOfHosts) {
  EXPECT_EQ(routes_of("a").ring().crossing, 0U);
  EXPECT_EQ(routes_of("aaa").ring().crossing, 0U);
  EXPECT_EQ(routes_of("aaaabbbb").ring().crossing, 1U);
  EXPECT_EQ(routes_of("abababab").ring().crossing, 1U);
  EXPECT_EQ(routes_of("abcdabcd").ring().crossing, 1U);
}

TEST(Routes, KnowTheLargestHostAndWhatAnAnnouncementTakes) {
  const Routes routes = routes_of("abacabb");
  EXPECT_EQ(routes.hosts(), 3U);
  EXPECT_EQ(routes.largest_host(), 3U);
  EXPECT_EQ(routes_of("aaaabbbb").announcement().crossing, 1U);
  EXPECT_EQ(routes_of("abab").announcement().crossing, 2U);
  EXPECT_EQ(routes_of("aabbccdd").announcement().crossing, 2U);
  EXPECT_EQ(routes_of("aaa").announcement().crossing, 0U);
}

}  // namespace
}  // namespace gtopk::collectives
