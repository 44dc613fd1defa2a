// Every selector of the registry: the reference's entries and state, bit for bit, on every SIMD
// target and from any pieces; and what it must not do.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "tests/gtopk/select/selectors.hpp"
#include "tests/gtopk/value/cut.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/numbers/flush_denormals.hpp"
#include "tests/support/count_allocations.hpp"

namespace gtopk::sparse {
namespace {

using testing::Kind;

TYPED_TEST_SUITE(Selectors, testing::AllTypes);

TYPED_TEST(Selectors, SmallCasesEqualTheReference) {
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(500, [&](std::uint64_t seed) {
      const std::size_t d = 1 + seed * 7919 % (seed % 3 == 0 ? 10 : 700);
      this->expect_reference(this->random_case(seed, selector, d));
    });
  });
}

TYPED_TEST(Selectors, SizesAroundStretchesAndChunksEqualTheReference) {
  this->for_each_selector([&](const std::string& selector) {
    std::uint64_t seed = 0;
    for (const std::size_t d : {4095, 4096, 4097, 4111, 8191, 8192, 8193, 12'304, 36'865, 70'001}) {
      for (int times = 0; times < 2; ++times) {
        this->expect_reference(this->random_case(++seed, selector, d));
      }
    }
  });
}

TYPED_TEST(Selectors, WhichPiecesTheGradientLiesInDoesNotShow) {
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(60, [&](std::uint64_t seed) {
      std::mt19937_64 random(seed);
      const std::size_t d = seed % 10 == 0 ? 40'000 + random() % 9 : 1 + random() % 9'000;
      const auto one = this->random_case(seed, selector, d);
      const auto expected = this->reference(one);
      const testing::Cut<typename TypeParam::T> cut(
          one.gradient, testing::random_cuts(d, 1 + random() % 3'000, random), random);
      testing::for_each_simd_target([&] {
        const auto outcome = this->select(one, Segments<void>(std::span(cut.pieces())));
        this->expect_equal(outcome, expected, one);
        EXPECT_TRUE(testing::same_bits(cut.joined(), one.gradient)) << "it only reads";
      });
    });
  });
}

TYPED_TEST(Selectors, OneNonFiniteElementAnywhereIsFound) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  using Limits = std::numeric_limits<Value>;
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(60, [&](std::uint64_t seed) {
      std::mt19937_64 random(seed);
      auto one = this->random_case(seed, selector, 1 + random() % (seed % 10 == 0 ? 40'000 : 600));
      const std::size_t at = random() % one.gradient.size();
      const Value bad[] = {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(),
                           -Limits::infinity()};
      const Value value = bad[random() % 4];
      if (!one.residual.empty() && random() % 2 == 0) {
        one.residual[at] = value;
      } else {
        one.gradient[at] = narrow<T>(value);
      }
      ASSERT_FALSE(this->reference(one).finite);
      this->expect_reference(one);
    });
  });
}

TYPED_TEST(Selectors, DenormalsAreSelectedEvenWhereTheHostFlushesThem) {
  using Value = typename TestFixture::Value;
  this->for_each_selector([&](const std::string& selector) {
    std::mt19937_64 random(1);
    auto one = this->random_case(1, selector, 600);
    one.gradient = testing::random_values<typename TypeParam::T>(Kind::kSubnormal, 600, random);
    one.residual = testing::random_values<Value>(Kind::kSubnormal, 600, random);
    one.state = {};
    const auto expected = this->reference(one);
    ASSERT_GT(expected.list.indices.size(), 0U);
    testing::for_each_simd_target([&] {
      const testing::FlushDenormals host;
      const auto outcome = this->select(one);
      const bool same = testing::same_bits(outcome.list, expected.list) &&
                        outcome.selection.next.numbers == expected.next.numbers;
      EXPECT_TRUE(same) << one.description();
    });
  });
}

TYPED_TEST(Selectors, NothingIsSelectedFromZerosOfEitherSign) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  this->for_each_selector([&](const std::string& selector) {
    for (const std::size_t d : {1, 7, 64, 5000}) {
      auto one = this->random_case(d, selector, d);
      one.gradient.assign(d, narrow<T>(Value{-0.0}));
      one.residual.clear();
      EXPECT_EQ(this->select(one).selection.count, 0U) << one.description();
      one.residual.assign(d, Value{0});
      EXPECT_EQ(this->select(one).selection.count, 0U) << one.description();
    }
  });
}

TYPED_TEST(Selectors, AnEmptyTensorHasNoEntries) {
  this->for_each_selector([&](const std::string& selector) {
    typename TestFixture::Case one;
    one.options.selector = selector;
    one.options.density = 0.5;
    one.state.numbers[0] = 1;
    const auto outcome = this->select(one);
    EXPECT_EQ(outcome.selection.count, 0U);
    EXPECT_TRUE(outcome.selection.finite);
  });
}

// Every threshold finds all or nothing, so every correction fails.
TYPED_TEST(Selectors, EqualMagnitudes_SelectAtLeastOneElement) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  this->for_each_selector([&](const std::string& selector) {
    for (const std::size_t k : {1, 16, 40, 3'000}) {
      auto one = this->random_case(k, selector, 40'000);
      for (std::size_t i = 0; i < one.gradient.size(); ++i) {
        one.gradient[i] = narrow<T>(i % 3 == 0 ? Value{1} : Value{-1});
      }
      one.residual.clear();
      if (!this->row(one).per_block) {
        one.options.k = k;
      }
      this->expect_reference(one);
      const std::size_t count = this->select(one).selection.count;
      EXPECT_GT(count, 0U) << one.description();
      EXPECT_LE(count, this->most_of(one)) << one.description();
    }
  });
}

TYPED_TEST(Selectors, TheSteadyStateAllocatesNothing) {
  using T = typename TypeParam::T;
  this->for_each_selector([&](const std::string& selector) {
    std::mt19937_64 random(1);
    auto one = this->random_case(1, selector, 100'000);
    if (!this->row(one).per_block) {
      one.options.k = 1'000;
    }
    one.residual.clear();
    typename TestFixture::List list;
    const auto arrays = list.out(this->most_of(one));
    List out;
    out.indices = reinterpret_cast<std::byte*>(arrays.indices);
    out.values = reinterpret_cast<std::byte*>(arrays.values);
    const SelectorRow& row = this->row(one);
    SelectScratch scratch;
    SelectionInput input;
    input.d = one.gradient.size();
    input.dtype = testing::kTypeOf<T>;
    input.k = this->k_of(one);
    input.entry = {accumulation_type(testing::kTypeOf<T>), sizeof(typename TypeParam::Index)};
    input.density = one.options.density;
    input.block = one.options.block;
    std::size_t after_first = 0;
    for (const Kind kind : {Kind::kGaussian, Kind::kGaussian, Kind::kTies, Kind::kAscending,
                            Kind::kAllEqual, Kind::kMostlyZero, Kind::kAnyFinite}) {
      one.gradient = testing::random_values<T>(kind, one.gradient.size(), random);
      input.tensor = one.gradient.data();
      const std::size_t before = support::allocations();
      // Twice: with state the second call takes another path.
      input.state = row.select(input, out, scratch).next;
      input.state = row.select(input, out, scratch).next;
      if (after_first == 0) {
        after_first = support::allocations() - before;
      } else {
        EXPECT_EQ(support::allocations(), before);
      }
    }
    EXPECT_GT(after_first, 0U) << "the counter does not count";
  });
}

}  // namespace
}  // namespace gtopk::sparse
