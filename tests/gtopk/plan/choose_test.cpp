// Sparse, plan: the cheapest candidate is chosen, ties go to the first, and the reason says
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
                  .picked = 2,
                  .coded = 5,
                  .merged = 7,
                  .united = 4,
                  .copied = 6,
                  .added = 11,
                  .committed = 13,
                  .applied = 17,
                  .gathered = 19,
                  .settled = 23};
  const Costs costs{.within = {10, 0.5},
                    .between = {1000, 2},
                    .select = 1,
                    .pick = 0.25,
                    .code = 10,
                    .merge = 100,
                    .unite = 50,
                    .copy = 5,
                    .add = 1000,
                    .commit = 10000,
                    .apply = 1e5,
                    .gather = 1e6,
                    .settle = 1e7};
  const Nanoseconds price = sparse::price(work, costs);
  EXPECT_EQ(price.latency, 30 + 2000);
  EXPECT_EQ(price.transfer, 50 + 21);
  EXPECT_EQ(price.computing, 3.5 + 50 + 700 + 200 + 30 + 11000 + 130000 + 17e5 + 19e6 + 23e7);
  EXPECT_EQ(price.total(), 2030 + 71 + price.computing);
}

TEST(Price, NamesEveryCostOfArithmeticOnce) {
  Costs costs;
  double sum = 0;
  for (const NamedCost& each : kArithmeticCosts) {
    EXPECT_EQ(costs.*each.cost, 0) << each.name;
    costs.*each.cost = 1;
    ++sum;
  }
  const Work one{.within = {},
                 .between = {},
                 .selected = 1,
                 .picked = 1,
                 .coded = 1,
                 .merged = 1,
                 .united = 1,
                 .copied = 1,
                 .added = 1,
                 .committed = 1,
                 .applied = 1,
                 .gathered = 1,
                 .settled = 1};
  EXPECT_EQ(price(one, costs).total(), sum);
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

TEST(Choose, SharedHostLink_FavoursMessagesWithinHosts) {
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
