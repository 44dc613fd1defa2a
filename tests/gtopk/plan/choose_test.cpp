// Sparse, plan room: the cheapest candidate is taken, ties go by the order, and the reason says
// what was compared.
#include <gtest/gtest.h>

#include "src/gtopk/plan/choose.hpp"

namespace gtopk::sparse {
namespace {

/// 50 us and 1 Gbit/s.
constexpr Costs kEthernet{.message = 50e3, .byte = 8, .merge = 3};

Candidate of(std::string_view name, std::uint64_t messages, double bytes) {
  return {name, {.messages = messages, .bytes = bytes}};
}

TEST(Price, IsEachCountTimesItsCost) {
  const Work work{.messages = 2,
                  .bytes = 10.5,
                  .selected = 3,
                  .coded = 5,
                  .merged = 7,
                  .united = 4,
                  .added = 11,
                  .committed = 13};
  const Costs costs{.message = 1000,
                    .byte = 2,
                    .select = 1,
                    .code = 10,
                    .merge = 100,
                    .unite = 50,
                    .add = 1000,
                    .commit = 10000};
  const Nanoseconds price = sparse::price(work, costs);
  EXPECT_EQ(price.latency, 2000);
  EXPECT_EQ(price.transfer, 21);
  EXPECT_EQ(price.computing, 3 + 50 + 700 + 200 + 11000 + 130000);
  EXPECT_EQ(price.total(), 2000 + 21 + 141953);
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
            "next b: 0.200 ms predicted (latency 0.100, transfer 0.100, computing 0.000)");
  EXPECT_EQ(choose(std::span(three).first(1), kEthernet).reason,
            "the only one allowed; "
            "a: 0.200 ms predicted (latency 0.200, transfer 0.000, computing 0.000)");
}

}  // namespace
}  // namespace gtopk::sparse
