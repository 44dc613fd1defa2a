// Tests of the statistics of samples: quantiles, and the line fitted to message times.
#include "tools/programs/samples.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tools/programs/program.hpp"

namespace gtopk::programs {
namespace {

TEST(Samples, OfOneAreAllTheSame) {
  const Summary one = summary({3});
  EXPECT_EQ(one.min, 3);
  EXPECT_EQ(one.p50, 3);
  EXPECT_EQ(one.p99, 3);
  EXPECT_EQ(one.max, 3);
}

TEST(Samples, AreSortedFirst) {
  std::vector<double> samples;
  for (int i = 0; i <= 100; ++i) {
    samples.push_back((i * 37) % 101);
  }
  const Summary all = summary(samples);
  EXPECT_EQ(all.min, 0);
  EXPECT_EQ(all.p50, 50);
  EXPECT_EQ(all.p99, 99);
  EXPECT_EQ(all.max, 100);
}

TEST(Samples, FitTakesAlphaFromSmallestAndBetaFromLongMessages) {
  // Short messages take no time, within a bucket; on the wire a byte takes 8 ns.
  const Link link = fit({{8, 5e-6}, {4096, 6e-6}, {65536, 1e-3}, {131072, 1e-3 + 65536 * 8e-9}});
  EXPECT_EQ(link.alpha, 5e-6);
  EXPECT_NEAR(link.beta, 8e-9, 1e-15);
}

TEST(Samples, FitGoesByAllWhereNoneIsLong) {
  EXPECT_NEAR(fit({{0, 1e-6}, {1000, 3e-6}}).beta, 2e-9, 1e-15);
}

TEST(Samples, ALinkIsDescribedWithoutABandwidthThatIsNone) {
  EXPECT_EQ(described({5e-6, 8e-9}), "alpha 5.00 us, beta 8.0000 ns/B (0.125 GB/s)");
  for (const double beta : {0.0, -1e-9}) {
    EXPECT_EQ(described({5e-6, beta}),
              "alpha 5.00 us, beta unknown: long messages took no longer than shorter ones; "
              "try more rounds");
  }
}

TEST(Sizes, GoUpByTheFactorAndEndWithTheEnd) {
  EXPECT_EQ(sizes_between(8, 64, 2), (std::vector<std::uint64_t>{8, 16, 32, 64}));
  EXPECT_EQ(sizes_between(8, 70, 4), (std::vector<std::uint64_t>{8, 32, 70}));
  EXPECT_EQ(sizes_between(1, 4, 1.3), (std::vector<std::uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(sizes_between(5, 5, 2), (std::vector<std::uint64_t>{5}));
  EXPECT_THROW(static_cast<void>(sizes_between(0, 5, 2)), UsageError);
  EXPECT_THROW(static_cast<void>(sizes_between(6, 5, 2)), UsageError);
  EXPECT_THROW(static_cast<void>(sizes_between(1, 5, 1)), UsageError);
}

TEST(Names, AreTakenInTheOrderOfTheLibrary) {
  const std::vector<Choice> choices = {{"a", ""}, {"b", ""}, {"c", ""}};
  EXPECT_EQ(chosen("-x", "c,a", choices), (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(chosen("-x", "all", choices), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_THROW(static_cast<void>(chosen("-x", "a,d", choices)), UsageError);
  EXPECT_THROW(static_cast<void>(chosen("-x", "", choices)), UsageError);
}

}  // namespace
}  // namespace gtopk::programs
