// Exact selection: the contract's set and values, bit for bit, on every SIMD target.
#include "src/gtopk/select/select_exact.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/gtopk/select/sample.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/cut.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/gtopk/value/simd_targets.hpp"
#include "tests/numbers/flush_denormals.hpp"
#include "tests/support/count_allocations.hpp"

namespace gtopk::sparse {
namespace {

using testing::Kind;
using testing::List;

template <class Param>
class SelectExact : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  struct Case {
    std::vector<T> gradient;
    std::vector<Value> residual;  // empty: none
    std::size_t k = 1;
  };

  static Case random_case(std::uint64_t seed, std::size_t largest) {
    std::mt19937_64 random(seed);
    const std::size_t d = 1 + random() % largest;
    Case one;
    one.gradient = testing::random_values<T>(testing::random_kind(random), d, random);
    if (random() % 4 != 0) {
      one.residual = testing::random_values<Value>(testing::random_kind(random), d, random);
      if (random() % 4 == 0) {  // sums that cancel
        for (std::size_t i = 0; i < d; i += 1 + random() % 3) {
          one.residual[i] = -widen(one.gradient[i]);
        }
      }
    }
    one.k = random() % 5 == 0 ? d + random() % 3 : 1 + random() % d;
    return one;
  }

  struct Outcome {
    Selection selection;
    List<Value, Index> list;
  };

  static Outcome select(const Case& one, SelectScratch& scratch) {
    const std::size_t d = one.gradient.size();
    const std::size_t capacity = std::min(one.k, d);
    Outcome outcome;
    outcome.selection = select_exact<T, Value, Index>(
        one.gradient.data(), one.residual.empty() ? nullptr : one.residual.data(), d, one.k,
        outcome.list.out(capacity), scratch);
    outcome.list.shrink(outcome.selection.count);
    return outcome;
  }

  static List<Value, Index> reference(const Case& one) {
    const auto acc = testing::reference_acc(one.gradient, one.residual);
    List<Value, Index> all;
    for (std::size_t i = 0; i < acc.size(); ++i) {
      all.push(static_cast<Index>(i), acc[i]);
    }
    return testing::reference_first(all, one.k);
  }

  void expect_reference(const Case& one) {
    const bool finite = testing::all_finite(testing::reference_acc(one.gradient, one.residual));
    const List<Value, Index> expected = finite ? reference(one) : List<Value, Index>{};
    testing::for_each_simd_target([&] {
      const Outcome outcome = select(one, scratch_);
      EXPECT_EQ(outcome.selection.finite, finite);
      EXPECT_TRUE(testing::same_bits(outcome.list, expected))
          << "d " << one.gradient.size() << " k " << one.k << " selected "
          << outcome.selection.count << " expected " << expected.indices.size();
    });
  }

  void expect_same_of_pieces(const Case& one, const std::vector<std::size_t>& lengths,
                             std::mt19937_64& random) {
    const Outcome expected = select(one, scratch_);
    const testing::Cut<T> cut(one.gradient, lengths, random);
    const std::size_t d = one.gradient.size();
    testing::for_each_simd_target([&] {
      List<Value, Index> list;
      const Selection selection = select_exact<T, Value, Index>(
          cut.segments(), one.residual.empty() ? nullptr : one.residual.data(), d, one.k,
          list.out(std::min(one.k, d)), scratch_);
      list.shrink(selection.count);
      EXPECT_EQ(selection.finite, expected.selection.finite);
      EXPECT_TRUE(testing::same_bits(list, expected.list))
          << "d " << d << " k " << one.k << ", " << lengths.size() << " pieces";
      EXPECT_TRUE(testing::same_bits(cut.joined(), one.gradient)) << "it only reads";
    });
  }

  SelectScratch scratch_;
};

TYPED_TEST_SUITE(SelectExact, testing::AllTypes);

TYPED_TEST(SelectExact, SmallCasesEqualAFullSort) {
  testing::for_each_seed(1500, [&](std::uint64_t seed) {
    this->expect_reference(this->random_case(seed, seed % 3 == 0 ? 10 : 700));
  });
}

TYPED_TEST(SelectExact, CasesWithASampledThresholdEqualAFullSort) {
  testing::for_each_seed(12, [&](std::uint64_t seed) {
    auto one = this->random_case(seed, 20'000);
    std::mt19937_64 random(seed);
    const std::size_t d = 40'000 + random() % 50'000;
    one.gradient = testing::random_values<typename TypeParam::T>(
        static_cast<Kind>(seed % static_cast<std::uint64_t>(Kind::kCount)), d, random);
    if (!one.residual.empty()) {
      one.residual =
          testing::random_values<typename TestFixture::Value>(Kind::kGaussian, d, random);
    }
    one.k = 1 + random() % (seed % 2 == 0 ? 100 : d / 3);
    this->expect_reference(one);
  });
}

TYPED_TEST(SelectExact, TooHighGuess_DoesNotChangeResult) {
  // Large values fill a few cache lines, so the sample sometimes hits far more than its share.
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  const std::size_t d = 65'536;
  const std::size_t line = 64 / sizeof(T);
  int too_high = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    typename TestFixture::Case one;
    one.k = 1'100;
    one.gradient = testing::random_values<T>(Kind::kMostlyZero, d, random);
    for (std::size_t n = 0; n < 1'024 / line; ++n) {
      const std::size_t at = random() % (d / line) * line;
      for (std::size_t i = at; i < at + line; ++i) {
        one.gradient[i] = narrow<T>(static_cast<Value>(100 + random() % 100));
      }
    }
    GrowingBuffer keys;
    const auto guess = sampled_threshold<T>(one.gradient.data(), nullptr, d, one.k, keys);
    const auto reached = static_cast<std::size_t>(
        std::count_if(one.gradient.begin(), one.gradient.end(),
                      [&](T value) { return magnitude_key(widen(value)) >= guess; }));
    if (reached < one.k) {
      ++too_high;
      this->expect_reference(one);
    }
  }
  EXPECT_GT(too_high, 0);
}

TYPED_TEST(SelectExact, WhichPiecesTheGradientLiesInDoesNotShow) {
  testing::for_each_seed(400, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = this->random_case(seed, seed % 20 == 0 ? 120'000 : 700);
    if (random() % 8 == 0) {
      one.gradient[random() % one.gradient.size()] = narrow<typename TypeParam::T>(
          std::numeric_limits<typename TestFixture::Value>::quiet_NaN());
    }
    const std::size_t longest = 1 + random() % (seed % 20 == 0 ? 30'000 : 200);
    this->expect_same_of_pieces(one, testing::random_cuts(one.gradient.size(), longest, random),
                                random);
  });
}

TYPED_TEST(SelectExact, PiecesShorterThanCacheLine_GiveSameThreshold) {
  using T = typename TypeParam::T;
  std::mt19937_64 random(1);
  const std::size_t d = 100'000;
  for (const std::size_t length : {1, 3, 15, 16, 17, 4096, 99'999}) {
    const auto gradient = testing::random_values<T>(Kind::kGaussian, d, random);
    std::vector<std::size_t> lengths(d / length, length);
    lengths.push_back(d % length);
    const testing::Cut<T> cut(gradient, lengths, random);
    GrowingBuffer keys;
    const auto expected = sampled_threshold<T>(gradient.data(), nullptr, d, 500, keys);
    EXPECT_GT(expected, 1U);
    EXPECT_EQ(sampled_threshold<T>(cut.segments(), nullptr, d, 500, keys), expected);
  }
}

TYPED_TEST(SelectExact, ManyMoreCandidatesThanTheBoundAreCutDownOnTheWay) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  const std::size_t d = 150'000;
  typename TestFixture::Case one;
  one.gradient.assign(d, narrow<T>(Value{1}));  // all equal: the lowest indices win
  one.k = 100;
  this->expect_reference(one);
  for (std::size_t i = 0; i < d; ++i) {  // ascending: each one displaces an earlier one
    one.gradient[i] = narrow<T>(static_cast<Value>(1 + (i >> 9U)));
  }
  this->expect_reference(one);
}

TYPED_TEST(SelectExact, NothingIsSelectedFromZerosOfEitherSign) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  for (const std::size_t d : {1, 7, 64, 1000}) {
    typename TestFixture::Case one;
    one.k = d;
    one.gradient.assign(d, narrow<T>(Value{-0.0}));
    EXPECT_EQ(this->select(one, this->scratch_).selection.count, 0U);
    one.residual.assign(d, Value{0});
    EXPECT_EQ(this->select(one, this->scratch_).selection.count, 0U);
  }
}

TYPED_TEST(SelectExact, OneNonFiniteElementAnywhereIsFound) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  using Limits = std::numeric_limits<Value>;
  testing::for_each_seed(200, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = this->random_case(seed, seed % 20 == 0 ? 80'000 : 600);
    const std::size_t at = random() % one.gradient.size();
    const Value bad[] = {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(),
                         -Limits::infinity()};
    const Value value = bad[random() % 4];
    if (!one.residual.empty() && random() % 2 == 0) {
      one.residual[at] = value;
    } else {
      one.gradient[at] = narrow<T>(value);
    }
    this->expect_reference(one);
  });
}

TYPED_TEST(SelectExact, AnOverflowInTheSumIsNotFinite) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  if constexpr (sizeof(T) == sizeof(Value)) {
    typename TestFixture::Case one;
    one.gradient = {T{1}, std::numeric_limits<T>::max(), T{2}};
    one.residual = {Value{1}, std::numeric_limits<Value>::max(), Value{2}};
    EXPECT_FALSE(this->select(one, this->scratch_).selection.finite);
  } else {
    typename TestFixture::Case one;  // a half type's largest is far from float's
    one.gradient = {narrow<T>(Value{60'000})};
    one.residual = {Value{60'000}};
    EXPECT_TRUE(this->select(one, this->scratch_).selection.finite);
  }
}

TYPED_TEST(SelectExact, ReadsOnlyAndWritesNoMoreThanTheCapacity) {
  testing::for_each_seed(100, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed, 500);
    const auto before = this->random_case(seed, 500);
    const std::size_t capacity = std::min(one.k, one.gradient.size());
    List<typename TestFixture::Value, typename TestFixture::Index> list;
    const auto out = list.out(capacity + 1);
    list.indices[capacity] = 77;
    list.values[capacity] = -7;
    (void)select_exact<typename TypeParam::T, typename TestFixture::Value,
                       typename TestFixture::Index>(
        one.gradient.data(), one.residual.empty() ? nullptr : one.residual.data(),
        one.gradient.size(), one.k, out, this->scratch_);
    EXPECT_EQ(list.indices[capacity], 77U);
    EXPECT_EQ(list.values[capacity], -7);
    EXPECT_TRUE(testing::same_bits(one.gradient, before.gradient));
    EXPECT_TRUE(testing::same_bits(one.residual, before.residual));
  });
}

TYPED_TEST(SelectExact, DenormalsAreSelectedEvenWhereTheHostFlushesThem) {
  using Value = typename TestFixture::Value;
  std::mt19937_64 random(1);
  typename TestFixture::Case one;
  one.gradient = testing::random_values<typename TypeParam::T>(Kind::kSubnormal, 300, random);
  one.residual = testing::random_values<Value>(Kind::kSubnormal, 300, random);
  one.k = 40;
  const auto expected = this->reference(one);
  ASSERT_EQ(expected.indices.size(), 40U);
  testing::for_each_simd_target([&] {
    const testing::FlushDenormals host;
    const auto outcome = this->select(one, this->scratch_);
    EXPECT_TRUE(testing::same_bits(outcome.list, expected));
  });
}

TYPED_TEST(SelectExact, TheSteadyStateAllocatesNothing) {
  std::mt19937_64 random(1);
  const std::size_t d = 100'000;
  typename TestFixture::Case one;
  List<typename TestFixture::Value, typename TestFixture::Index> list;
  const auto out = list.out(1000);
  std::size_t after_first = 0;
  for (const Kind kind : {Kind::kGaussian, Kind::kTies, Kind::kAscending, Kind::kAllEqual,
                          Kind::kMostlyZero, Kind::kAnyFinite}) {
    one.gradient = testing::random_values<typename TypeParam::T>(kind, d, random);
    const std::size_t before = support::allocations();
    (void)select_exact<typename TypeParam::T, typename TestFixture::Value,
                       typename TestFixture::Index>(one.gradient.data(), nullptr, d, 1000, out,
                                                    this->scratch_);
    if (kind != Kind::kGaussian) {
      EXPECT_EQ(support::allocations(), before);
    } else {
      after_first = support::allocations() - before;
    }
  }
  EXPECT_GT(after_first, 0U) << "the counter does not count";
}

TYPED_TEST(SelectExact, AnEmptyTensorHasNoEntries) {
  const auto selection =
      select_exact<typename TypeParam::T, typename TestFixture::Value, typename TestFixture::Index>(
          nullptr, nullptr, 0, 1, {}, this->scratch_);
  EXPECT_EQ(selection.count, 0U);
  EXPECT_TRUE(selection.finite);
}

}  // namespace
}  // namespace gtopk::sparse
