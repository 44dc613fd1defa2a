// Merge and unite: the contract's set and sums, bit for bit, commutative, on every SIMD target.
#include "src/gtopk/merge/merge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>

#include "src/gtopk/value/selection_order.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/gtopk/value/simd_targets.hpp"
#include "tests/numbers/flush_denormals.hpp"
#include "tests/support/count_allocations.hpp"

namespace gtopk::sparse {
namespace {

using testing::List;

template <class Param>
class Merge : public ::testing::Test {
 protected:
  using Value = typename Param::Value;
  using Index = typename Param::Index;
  using Entry = List<Value, Index>;

  struct Case {
    Entry a;
    Entry b;
    std::size_t k = 1;
  };

  struct Outcome {
    Merged merged;
    Entry kept;
    Entry dropped;
  };

  static Entry random_list(std::size_t size, Index gap, std::mt19937_64& random) {
    // 64-bit indices also around the limit of 32 bits.
    const std::uint64_t start = sizeof(Index) == 8 && random() % 2 == 0 ? 0xFFFFFF00U : 0;
    return testing::random_list_from<Value, Index>(start, size, gap, random);
  }

  static Case random_case(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t largest = seed % 50 == 0 ? 5'000 : seed % 3 == 0 ? 6 : 300;
    const Index spread = 1 + static_cast<Index>(random() % 4);
    Case one;
    one.a = random_list(random() % largest, spread, random);
    one.b = random_list(random() % largest, spread, random);
    switch (random() % 4) {
      case 0:  // sums that cancel
        for (std::size_t i = 0; i < std::min(one.a.indices.size(), one.b.indices.size()); ++i) {
          one.b.indices[i] = one.a.indices[i];
          one.b.values[i] = random() % 2 == 0 ? -one.a.values[i] : one.b.values[i];
        }
        one.b.shrink(std::min(one.a.indices.size(), one.b.indices.size()));
        break;
      case 1:  // one list wholly behind the other
        if (!one.a.indices.empty()) {
          for (Index& index : one.b.indices) {
            index += one.a.indices.back() + 1;
          }
        }
        break;
      default:
        break;
    }
    one.k = random() % (largest + 2);
    return one;
  }

  static Outcome merge_lists(const Entry& a, const Entry& b, std::size_t k, MergeScratch& scratch) {
    const std::size_t all = a.indices.size() + b.indices.size();
    Outcome outcome;
    auto dropped = outcome.dropped.out(all);
    outcome.merged =
        merge(a.view(), b.view(), k, outcome.kept.out(std::min(k, all)), &dropped, scratch);
    outcome.kept.shrink(outcome.merged.kept);
    outcome.dropped.shrink(outcome.merged.dropped);
    return outcome;
  }

  MergeScratch scratch_;
};

TYPED_TEST_SUITE(Merge, testing::AllListTypes);

TYPED_TEST(Merge, KeepsTheFirstOfTheSumAndDropsTheRest) {
  testing::for_each_seed(4000, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    const auto sum = testing::reference_sum(one.a, one.b);
    const bool finite = testing::all_finite(sum.values);
    typename TestFixture::Entry dropped;
    typename TestFixture::Entry kept;
    if (finite) {
      kept = testing::reference_first(sum, one.k, &dropped);
    }
    testing::for_each_simd_target([&] {
      const auto outcome = this->merge_lists(one.a, one.b, one.k, this->scratch_);
      EXPECT_EQ(outcome.merged.finite, finite);
      EXPECT_TRUE(testing::same_bits(outcome.kept, kept))
          << outcome.kept.indices.size() << " kept, not " << kept.indices.size();
      EXPECT_TRUE(testing::same_bits(outcome.dropped, dropped))
          << outcome.dropped.indices.size() << " dropped, not " << dropped.indices.size();
    });
  });
}

TYPED_TEST(Merge, IsCommutativeBitForBit) {
  testing::for_each_seed(1000, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    const auto forth = this->merge_lists(one.a, one.b, one.k, this->scratch_);
    const auto back = this->merge_lists(one.b, one.a, one.k, this->scratch_);
    EXPECT_TRUE(testing::same_bits(forth.kept, back.kept));
    EXPECT_TRUE(testing::same_bits(forth.dropped, back.dropped));
  });
}

TYPED_TEST(Merge, WithoutADroppedListKeepsAndCountsTheSame) {
  testing::for_each_seed(1000, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    const auto with = this->merge_lists(one.a, one.b, one.k, this->scratch_);
    const std::size_t capacity = std::min(one.k, one.a.indices.size() + one.b.indices.size());
    typename TestFixture::Entry kept;
    const auto merged = merge<typename TestFixture::Value, typename TestFixture::Index>(
        one.a.view(), one.b.view(), one.k, kept.out(capacity), nullptr, this->scratch_);
    kept.shrink(merged.kept);
    EXPECT_TRUE(testing::same_bits(kept, with.kept));
    EXPECT_EQ(merged.dropped, with.merged.dropped);
    EXPECT_EQ(merged.finite, with.merged.finite);
  });
}

TYPED_TEST(Merge, ZeroSumsAreNeitherKeptNorDropped) {
  using Value = typename TestFixture::Value;
  typename TestFixture::Entry a;
  typename TestFixture::Entry b;
  a.push(1, Value{2});
  a.push(5, Value{3});
  a.push(7, Value{-0.0});
  b.push(1, Value{-2});
  b.push(9, Value{1});
  const auto outcome = this->merge_lists(a, b, 1, this->scratch_);
  ASSERT_EQ(outcome.merged.kept, 1U);
  EXPECT_EQ(outcome.kept.indices[0], 5U);
  ASSERT_EQ(outcome.merged.dropped, 1U);
  EXPECT_EQ(outcome.dropped.indices[0], 9U);
}

/// Of each block its own first entries.
template <class Value, class Index>
List<Value, Index> first_of_blocks(const List<Value, Index>& list, std::uint64_t d,
                                   std::uint64_t length, double density,
                                   List<Value, Index>& dropped) {
  List<Value, Index> kept;
  for (std::size_t i = 0; i < list.indices.size();) {
    const std::uint64_t begin = list.indices[i] / length * length;
    List<Value, Index> block;
    for (; i < list.indices.size() && list.indices[i] - begin < length; ++i) {
      block.push(list.indices[i], list.values[i]);
    }
    List<Value, Index> rest;
    const std::uint64_t k = selection_size(std::min(length, d - begin), density);
    for (const auto& [from, to] :
         {std::pair{testing::reference_first(block, k, &rest), &kept}, {rest, &dropped}}) {
      to->indices.insert(to->indices.end(), from.indices.begin(), from.indices.end());
      to->values.insert(to->values.end(), from.values.begin(), from.values.end());
    }
  }
  return kept;
}

TYPED_TEST(Merge, OfBlocksKeepsTheFirstOfEach) {
  using Value = typename TestFixture::Value;
  using Index = typename TestFixture::Index;
  testing::for_each_seed(2000, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    const auto sum = testing::reference_sum(one.a, one.b);
    const bool finite = testing::all_finite(sum.values);
    std::mt19937_64 random(seed);
    const std::uint64_t d = (sum.indices.empty() ? 0 : sum.indices.back()) + 1 + random() % 9;
    const std::uint64_t length = 1 + random() % (random() % 2 == 0 ? 20 : 2'000);
    const double density = std::ldexp(1.0, -static_cast<int>(random() % 8));
    const Blocks blocks(d, density, length);
    ASSERT_EQ(blocks.keep(), selection_size(d, density, length));
    typename TestFixture::Entry dropped;
    typename TestFixture::Entry kept;
    if (finite) {
      kept = first_of_blocks(sum, d, length, density, dropped);
    }
    testing::for_each_simd_target([&] {
      const std::size_t all = one.a.indices.size() + one.b.indices.size();
      const std::size_t capacity = std::min<std::size_t>(blocks.keep(), all);
      typename TestFixture::Outcome outcome;
      auto rest = outcome.dropped.out(all);
      outcome.merged = merge<Value, Index>(one.a.view(), one.b.view(), blocks,
                                           outcome.kept.out(capacity), &rest, this->scratch_);
      outcome.kept.shrink(outcome.merged.kept);
      outcome.dropped.shrink(outcome.merged.dropped);
      EXPECT_EQ(outcome.merged.finite, finite);
      EXPECT_TRUE(testing::same_bits(outcome.kept, kept));
      EXPECT_TRUE(testing::same_bits(outcome.dropped, dropped));
      typename TestFixture::Entry alone;
      const auto merged = merge<Value, Index>(one.a.view(), one.b.view(), blocks,
                                              alone.out(capacity), nullptr, this->scratch_);
      alone.shrink(merged.kept);
      EXPECT_TRUE(testing::same_bits(alone, kept));
      EXPECT_EQ(merged.dropped, outcome.merged.dropped);
      if (!finite) {
        return;
      }
      typename TestFixture::Entry of_cut;
      auto rest_of_cut = outcome.dropped.out(all);
      const auto cut_kept = of_cut.out(std::min<std::size_t>(blocks.keep(), sum.indices.size()));
      const auto divided =
          cut<Value, Index>(sum.view(), blocks, cut_kept, rest_of_cut, this->scratch_);
      of_cut.shrink(divided.kept);
      outcome.dropped.shrink(divided.dropped);
      EXPECT_TRUE(testing::same_bits(of_cut, kept));
      EXPECT_TRUE(testing::same_bits(outcome.dropped, dropped));
    });
  });
}

TYPED_TEST(Merge, AnOverflowingSumIsNotFinite) {
  using Value = typename TestFixture::Value;
  typename TestFixture::Entry a;
  a.push(0, Value{1});
  a.push(3, std::numeric_limits<Value>::max());
  EXPECT_FALSE(this->merge_lists(a, a, 1, this->scratch_).merged.finite);
  typename TestFixture::Entry united;
  EXPECT_FALSE(unite(a.view(), a.view(), united.out(4)).finite);
}

TYPED_TEST(Merge, UniteSumsEverythingAndKeepsZeroSums) {
  testing::for_each_seed(2000, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    const auto sum = testing::reference_sum(one.a, one.b);
    typename TestFixture::Entry united;
    const auto merged =
        unite(one.a.view(), one.b.view(), united.out(one.a.indices.size() + one.b.indices.size()));
    EXPECT_EQ(merged.finite, testing::all_finite(sum.values));
    united.shrink(merged.kept);
    if (merged.finite) {
      for (typename TestFixture::Value& value : united.values) {
        value += 0;  // the sign of a zero means nothing
      }
      EXPECT_TRUE(testing::same_bits(united, sum));
    }
  });
}

TYPED_TEST(Merge, DenormalsAreSummedEvenWhereTheHostFlushesThem) {
  using Value = typename TestFixture::Value;
  const Value least = std::numeric_limits<Value>::denorm_min();
  typename TestFixture::Entry a;
  a.push(0, least);
  a.push(4, 2 * least);
  const testing::FlushDenormals host;
  const auto outcome = this->merge_lists(a, a, 1, this->scratch_);
  ASSERT_EQ(outcome.merged.kept, 1U);
  EXPECT_EQ(magnitude_key(outcome.kept.values[0]), 4U);
  ASSERT_EQ(outcome.merged.dropped, 1U);
  EXPECT_EQ(magnitude_key(outcome.dropped.values[0]), 2U);
}

TYPED_TEST(Merge, TheSteadyStateAllocatesNothing) {
  std::mt19937_64 random(1);
  typename TestFixture::Entry kept;
  typename TestFixture::Entry dropped;
  const auto kept_out = kept.out(2'000);
  auto dropped_out = dropped.out(4'000);
  for (int round = 0; round < 10; ++round) {
    const auto a = this->random_list(2'000, 4, random);
    const auto b = this->random_list(2'000, 4, random);
    const std::size_t before = support::allocations();
    (void)merge(a.view(), b.view(), 1'500, kept_out, &dropped_out, this->scratch_);
    EXPECT_EQ(support::allocations() == before, round > 0);
  }
}

}  // namespace
}  // namespace gtopk::sparse
