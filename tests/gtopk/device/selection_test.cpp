// The kernels of every selector that a device has, on the CPU: the same bits as the selector's own
// code, whatever the pieces and the order of threads and blocks.
#include "src/gtopk/device/selection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/device/selection_cases.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using Rule = SelectionRule::Kind;
using testing::DeviceMemory;
using testing::HostExecutor;
using testing::InPieces;

template <class Param>
class DeviceSelection : public RuledSelectors<Param> {
 protected:
  using Base = RuledSelectors<Param>;
  using typename Base::Case;
  using typename Base::Index;
  using typename Base::Outcome;
  using typename Base::T;
  using typename Base::Value;

  struct Seen : Outcome {
    device::Route route = device::Route::kNowhere;
  };

  static Seen on_the_device(Case one, const SelectionRule& rule, std::mt19937_64& random,
                            std::uint64_t begin = 0, std::uint64_t candidates = 0) {
    EXPECT_LE(rule.most, Base::most_of(one)) << one.description();
    return launch(std::move(one), rule, random, begin, candidates);
  }

  [[nodiscard]] static bool searches(const SelectionRule& rule) {
    return rule.kind != Rule::kExact && rule.kind != Rule::kBlocks;
  }

  /// `candidates`: the capacity for those of an approximate selection; 0: none are collected.
  static Seen launch(Case one, const SelectionRule& rule, std::mt19937_64& random,
                     std::uint64_t begin = 0, std::uint64_t candidates = 0) {
    const InPieces<T> pieces(one.gradient, one.residual, random() % 2 == 0, random, begin);
    const std::size_t d = one.gradient.size();
    const auto take = [&](device::Arena& arena) {
      const std::uint64_t tiles = pieces.view().tiles;
      auto workspace = device::RuleWorkspace<Value>::in(arena, tiles, d, rule);
      if (searches(rule)) {
        workspace.search = device::SearchWorkspace<Value>::in(arena, tiles, d, rule, candidates);
      }
      return workspace;
    };
    DeviceMemory memory(take);
    device::Arena arena = memory.arena();
    const auto workspace = take(arena);
    HostExecutor executor(random(), 1 + random() % 4);
    Seen outcome;
    device::Report report;
    device::select_by<T>(rule, executor, pieces.view(), d, workspace, outcome.list.out(rule.most),
                         &report, one.state.numbers.data(), outcome.selection.next.numbers.data());
    outcome.selection.count = report.kept;
    outcome.selection.finite = report.finite != 0;
    outcome.list.shrink(report.kept);
    if (searches(rule)) {
      outcome.route = workspace.search.selection.refine.key.cutoff->route;
    }
    return outcome;
  }

  void expect_as_on_the_cpu(const Case& one, const SelectionRule& rule, std::mt19937_64& random,
                            std::uint64_t begin = 0) {
    const Outcome expected = this->expected(one, rule, begin);
    Base::expect_same(on_the_device(one, rule, random, begin), expected, one, rule);
  }
};

TYPED_TEST_SUITE(DeviceSelection, testing::NarrowTypes);

TYPED_TEST(DeviceSelection, GivesWhatTheSelectorGivesOnAnyData) {
  std::map<Rule, int> kinds;
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(30, [&](std::uint64_t seed) {
      const auto one = this->random_case(seed, selector, 3 * device::kTile);
      std::mt19937_64 random(seed);
      const auto rule = TestFixture::rule_of(one);
      ASSERT_TRUE(rule.has_value()) << one.description();
      ++kinds[rule->kind];
      this->expect_as_on_the_cpu(one, *rule, random);
    });
  });
  if (std::getenv("GTOPK_SEED") == nullptr) {
    EXPECT_THAT(kinds, ::testing::SizeIs(4)) << "every kind of rule was tried";
  }
}

// Thresholds close to the data, and some that no step leaves.
TYPED_TEST(DeviceSelection, PreviousThreshold_GivesSameSelectionAsOnCpu) {
  std::uint64_t close = 0;
  testing::for_each_seed(120, [&](std::uint64_t seed) {
    auto one = this->random_case(seed, "threshold", 2 * device::kTile);
    TestFixture::let_it_have_a_state(seed, one);
    std::mt19937_64 random(seed);
    const auto rule = TestFixture::rule_of(one);
    ASSERT_TRUE(rule.has_value() && rule->kind == Rule::kThreshold) << one.description();
    this->expect_as_on_the_cpu(one, *rule, random);
    const auto chosen = this->select(one).selection;
    close += chosen.finite && chosen.count != one.options.k ? 1 : 0;
  });
  if (std::getenv("GTOPK_SEED") == nullptr) {
    EXPECT_GE(close, support::kSanitized ? 1U : 10U) << "of which the threshold was used";
  }
}

// Among the candidates, or in all of acc where there are too many, too few or none.
TYPED_TEST(DeviceSelection, GivesTheSameWithAnyCapacityForCandidates) {
  std::map<device::Route, int> routes;
  for (const std::string selector : {"gaussian", "sampled", "threshold"}) {
    testing::for_each_seed(60, [&](std::uint64_t seed) {
      auto one = this->random_case(seed, selector, 2 * device::kTile);
      TestFixture::let_it_have_a_state(seed, one);
      std::mt19937_64 random(seed);
      if (seed % 10 == 0) {
        TestFixture::spoil(one, random);
      }
      const auto rule = TestFixture::rule_of(one);
      ASSERT_TRUE(rule.has_value()) << one.description();
      if (!TestFixture::searches(*rule)) {
        return;
      }
      const std::uint64_t d = one.gradient.size();
      const auto expected = this->expected(one, *rule, 0);
      for (const std::uint64_t candidates : {std::uint64_t{0}, d, 1 + random() % (d + 1)}) {
        const auto seen = TestFixture::on_the_device(one, *rule, random, 0, candidates);
        TestFixture::expect_same(seen, expected, one, *rule);
        ++routes[seen.route];
      }
    });
  }
  if (std::getenv("GTOPK_SEED") == nullptr) {
    EXPECT_GE(routes[device::Route::kCandidates], support::kSanitized ? 5 : 40);
    EXPECT_GE(routes[device::Route::kAll], support::kSanitized ? 5 : 40);
  }
}

TYPED_TEST(DeviceSelection, FindsWhatIsNotFinite) {
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(8, [&](std::uint64_t seed) {
      auto one = this->random_case(seed, selector, 2 * device::kTile);
      std::mt19937_64 random(seed);
      TestFixture::spoil(one, random);
      const auto seen = TestFixture::on_the_device(one, TestFixture::rule_of(one).value(), random);
      EXPECT_FALSE(seen.selection.finite) << one.description();
      EXPECT_EQ(seen.selection.count, 0U) << one.description();
    });
  });
}

TYPED_TEST(DeviceSelection, NumbersElementsBehindWhatThirtyTwoBitsCount) {
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(4, [&](std::uint64_t seed) {
      const auto one = this->random_case(seed, selector, 2 * device::kTile);
      std::mt19937_64 random(seed);
      this->expect_as_on_the_cpu(one, TestFixture::rule_of(one).value(), random,
                                 TestFixture::kFarBegin);
    });
  });
}

// Beyond the first tile of a block, ties are kept only as far as those before them leave space.
TYPED_TEST(DeviceSelection, TiesInMultiTileBlock_KeepLowestIndices) {
  const typename TestFixture::TiesInBlocks ties;
  testing::for_each_seed(4, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto seen = TestFixture::launch(ties.one, ties.rule, random);
    EXPECT_EQ(seen.list.indices, ties.indices);
    EXPECT_THAT(seen.list.values, ::testing::Each(-2));
  });
}

// Whatever the counts are.
TEST(ThresholdLists, HaveEveryThresholdThatCorrectionsLeadTo) {
  for (const Correction& correction :
       {kGaussianCorrection, kSampledCorrection, kThresholdCorrection}) {
    testing::for_each_seed(20, [&](std::uint64_t seed) {
      std::mt19937_64 random(seed);
      const device::Search search{std::ldexp(1 + static_cast<double>(random()), -70)};
      std::vector<Key<double>> keys(device::Thresholds<double>::count_of(correction));
      const device::Thresholds<double> list{keys.data(), static_cast<unsigned>(keys.size())};
      HostExecutor executor(seed, 1);
      executor.launch(1, device::ListThresholds<double>{&search, correction, list});
      EXPECT_TRUE(std::ranges::is_sorted(keys));
      for (int way = 0; way < 100; ++way) {
        double threshold = search.threshold;
        for (int left = correction.times; left >= 0; --left) {
          const auto key = key_reaching<double>(threshold);
          ASSERT_EQ(keys[list.below(key)], key);
          ASSERT_EQ(list.below(key), std::ranges::lower_bound(keys, key) - keys.begin());
          threshold *= random() % 2 == 0 ? correction.down : correction.up;
        }
      }
    });
  }
}

SparseOptions with(std::string selector, std::uint64_t block = 4096) {
  SparseOptions options;
  options.selector = std::move(selector);
  options.density = 0.01;
  options.block = block;
  return options;
}

SelectionRule rule(const SparseOptions& options, std::uint64_t d, std::uint64_t k) {
  return selector_registry().find(options.selector).on_device(d, k, options).value();
}

TEST(SelectionRules, AreExactWhereTheSelectorIs) {
  EXPECT_EQ(rule(with("exact"), 1000, 10).kind, Rule::kExact);
  EXPECT_EQ(rule(with("sampled"), 1000, 15).kind, Rule::kExact) << "too few for a sample";
  EXPECT_EQ(rule(with("sampled"), 1000, 16).kind, Rule::kSample);
  EXPECT_EQ(rule(with("threshold"), 1000, 10).kind, Rule::kExact) << "there is no threshold yet";
  EXPECT_EQ(rule(with("block", 1000), 1000, 10).kind, Rule::kExact) << "one block";
  EXPECT_EQ(rule(with("block", 999), 1000, 10).kind, Rule::kBlocks);
}

TEST(SelectionRules, GoOnFromAStateWhereThereIsOne) {
  SparseOptions options = with("threshold");
  SelectorState state;
  options.state = &state;
  EXPECT_EQ(rule(options, 1000, 10).kind, Rule::kThreshold);
  EXPECT_EQ(rule(options, 1000, 10).most, 14U);
}

TEST(SelectionRules, AreNoneForBlocksThatWouldNotPay) {
  constexpr std::uint64_t kD = std::uint64_t{1} << 24U;
  EXPECT_FALSE(kBlock.on_device(kD, 1, with("block", 63)).has_value());
  EXPECT_TRUE(kBlock.on_device(kD, 1, with("block", 64)).has_value());
  EXPECT_TRUE(kBlock.on_device(kD, 1, with("block", std::uint64_t{1} << 20U)).has_value());
  EXPECT_FALSE(kBlock.on_device(kD, 1, with("block", (std::uint64_t{1} << 20U) + 1)).has_value());
}

// 335 million elements, and more than 2^32: sizes alone.
TEST(SelectionRules, CountBlocksChunksAndSamplesOfLongVectors) {
  for (const std::uint64_t d : {std::uint64_t{335'000'001}, (std::uint64_t{1} << 31U) + 9,
                                (std::uint64_t{1} << 32U) + 9, (std::uint64_t{1} << 40U) + 9}) {
    const device::BlockGrid grid = device::grid_of(d, rule(with("block"), d, 1));
    EXPECT_EQ(grid.count(), d / 4096 + 1);
    EXPECT_EQ(grid.size(grid.count() - 1), d % 4096);
    EXPECT_EQ(grid.size(grid.count() - 2), 4096U);
    EXPECT_EQ(grid.k_of(0), 41U);
    EXPECT_EQ(device::SumChunks<float>::chunks_of(d), d / 4096 + 1);
    const SelectionRule sample = rule(with("sampled"), d, d / 1000);
    EXPECT_EQ(sample.stride, 101U);
    const device::SampleSource<float> source{{}, sample.stride, (d + 100) / 101};
    EXPECT_EQ(source.loose_tiles(), ((d + 100) / 101 + 255) / 256);
    device::Arena measured(nullptr);
    const SelectionRule exact = rule(with("exact"), d, d / 1000);
    (void)device::RuleWorkspace<float>::in(measured, device::tiles_of(d), d, exact);
    // 24 bytes for each tile, 18 for each candidate, of which there are 2k and a few more.
    EXPECT_LT(measured.taken(), d / 4096 * 24 + (2 * (d / 1000) + 32'768) * 18 + 100'000);
  }
}

}  // namespace
}  // namespace gtopk::sparse
