// Sparse, plan room: the cheapest candidate is chosen, ties go to the first, and the reason says
// what was compared.
#include <gtest/gtest.h>

#include "src/gtopk/plan/choose.hpp"

namespace gtopk::sparse {
namespace {

/// 1 us and 8 Gbit/s, 50 us and 1 Gbit/s.
constexpr Costs kEthernet{.within = {1e3, 1}, .between = {50e3, 8}, .merge = 3};

Candidate of(std::string_view name, std::uint64_t messages, double bytes) {
  return {name, {.within = {}, .between = {messages, bytes}, .host_bytes = bytes}};
}

TEST(Price, IsEachCountTimesItsCost) {
  const Work work{.within = {3, 100},
                  .between = {2, 7},
                  .host_bytes = 10.5,
                  .selected = 3,
                  .coded = 5,
                  .merged = 7,
                  .united = 4,
                  .added = 11,
                  .committed = 13};
  const Costs costs{.within = {10, 0.5},
                    .between = {1000, 2},
                    .select = 1,
                    .code = 10,
                    .merge = 100,
                    .unite = 50,
                    .add = 1000,
                    .commit = 10000};
  const Nanoseconds price = sparse::price(work, costs);
  EXPECT_EQ(price.latency, 30 + 2000);
  EXPECT_EQ(price.transfer, 50 + 21);
  EXPECT_EQ(price.computing, 3 + 50 + 700 + 200 + 11000 + 130000);
  EXPECT_EQ(price.total(), 2030 + 71 + 141953);
}

TEST(Choose, TakesLatencyForShortListsAndBytesForLongOnes) {
  const std::vector<Candidate> small = {of("few-messages", 3, 6000), of("few-bytes", 9, 4000)};
  EXPECT_EQ(choose(small, kEthernet).index, 0U);
  const std::vector<Candidate> large = {of("few-messages", 3, 6e6), of("few-bytes", 9, 4e6)};
  EXPECT_EQ(choose(large, kEthernet).index, 1U);
}

TEST(Choose, TakesTheFirstOfEquals) {
  const std::vector<Candidate> equals = {of("dear", 9, 10), of("first", 1, 10),
                                         of("second", 1, 10)};
  EXPECT_EQ(choose(equals, kEthernet).index, 1U);
}

TEST(Choose, TellsEveryPredictionAndWhy) {
  const std::vector<Candidate> three = {of("a", 4, 0), of("b", 2, 12500), of("c", 3, 12500)};
  const Chosen chosen = choose(three, kEthernet);
  EXPECT_EQ(chosen.index, 0U);
  ASSERT_EQ(chosen.predictions.size(), 3U);
  EXPECT_EQ(chosen.predictions[1].algorithm, "b");
  EXPECT_EQ(chosen.predictions[1].messages, 2U);
  EXPECT_EQ(chosen.predictions[1].bytes, 12500);
  EXPECT_DOUBLE_EQ(chosen.predictions[1].seconds, 200e-6);
  EXPECT_EQ(chosen.reason,
            "the cheapest of 3; "
            "a: 0.200 ms predicted (latency 0.200, transfer 0.000, computing 0.000); "
            "next b: 0.200 ms predicted (latency 0.100, transfer 0.100, computing 0.000), "
            "12500 bytes over a host's link");
  EXPECT_EQ(choose(std::span(three).first(1), kEthernet).reason,
            "the only one allowed; "
            "a: 0.200 ms predicted (latency 0.200, transfer 0.000, computing 0.000)");
}

TEST(Choose, PrefersManyMessagesWithinAHostToFewThatItsRanksSendToOthersAtOnce) {
  const std::vector<Candidate> two = {
      {"flat", {.within = {2, 2e5}, .between = {1, 1e5}, .host_bytes = 4e5}},
      {"one-of-a-host", {.within = {6, 6e5}, .between = {1, 1e5}, .host_bytes = 1e5}}};
  EXPECT_EQ(choose(two, kEthernet).index, 1U);
  // Not if links are alike and not shared.
  constexpr Costs kAlike{.within = {50e3, 8}, .between = {50e3, 8}};
  EXPECT_EQ(choose(two, kAlike).index, 0U);
  EXPECT_EQ(choose(two, kAlike).predictions[0].host_bytes, 4e5);
  EXPECT_EQ(choose(two, kAlike).predictions[0].bytes, 3e5);
}

}  // namespace
}  // namespace gtopk::sparse
