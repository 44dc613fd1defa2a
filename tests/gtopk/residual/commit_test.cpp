// Commit: tensor and residual after the exchange, against the contract's rules applied one index at
// a time, bit for bit, on every SIMD target.
#include "src/gtopk/residual/commit.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/cut.hpp"
#include "tests/gtopk/value/random_lists.hpp"
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
class Commit : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  struct Case {
    std::vector<T> tensor;
    std::vector<Value> residual;  // empty: none
    List<Value, Index> own;
    List<Value, Index> result;
    std::vector<List<Value, Index>> dropped;
    PutBack put_back = PutBack::kOwn;
    Value divisor = 1;
  };

  static List<Value, Index> random_list(std::size_t d, std::size_t gap, std::mt19937_64& random) {
    return testing::random_list_below<Value, Index>(d, gap, random);
  }

  static Case random_case(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t largest = seed % 20 == 0 ? 30'000 : seed % 3 == 0 ? 8 : 500;
    const std::size_t d = 1 + random() % largest;
    Case one;
    one.tensor = testing::random_values<T>(testing::random_kind(random), d, random);
    if (random() % 5 != 0) {
      one.residual = testing::random_values<Value>(Kind::kGaussian, d, random);
    }
    const std::size_t sparsity = 1 + random() % 20;
    one.own = random_list(d, sparsity, random);
    one.result = random_list(d, sparsity, random);
    const std::size_t lists = seed % 7 == 0 ? 35 : random() % 5;
    for (std::size_t list = 0; list < lists; ++list) {
      one.dropped.push_back(random_list(d, sparsity, random));
    }
    one.put_back = random() % 2 == 0 ? PutBack::kOwn : PutBack::kMerged;
    one.divisor = static_cast<Value>(1 + random() % 9);
    return one;
  }

  static void run(Case& one) { run(one, one.tensor.data()); }

  // `tensor` is where the tensor lies.
  static void run(Case& one, Segments<T> tensor) {
    std::vector<Entries<Value, Index>> dropped;
    dropped.reserve(one.dropped.size());
    for (const auto& list : one.dropped) {
      dropped.push_back(list.view());
    }
    commit<T, Value, Index>(tensor, one.residual.empty() ? nullptr : one.residual.data(),
                            one.tensor.size(),
                            {.own = one.own.view(),
                             .result = one.result.view(),
                             .dropped = dropped,
                             .put_back = one.put_back},
                            one.divisor);
  }

  // The rules of put_back as the contract states them, one index after the other.
  static Case reference(Case one) {
    const auto acc = testing::reference_acc(one.tensor, one.residual);
    std::map<Index, Value> final_set;
    for (std::size_t i = 0; i < one.result.indices.size(); ++i) {
      final_set[one.result.indices[i]] = one.result.values[i];
    }
    if (!one.residual.empty()) {
      one.residual = acc;
      for (const Index index : one.own.indices) {
        if (one.put_back == PutBack::kMerged || final_set.contains(index)) {
          one.residual[index] = 0;
        }
      }
      for (const auto& list : one.dropped) {
        for (std::size_t i = 0; i < list.indices.size(); ++i) {
          if (one.put_back == PutBack::kMerged || final_set.contains(list.indices[i])) {
            one.residual[list.indices[i]] += list.values[i];
          }
        }
      }
    }
    for (std::size_t i = 0; i < one.tensor.size(); ++i) {
      const auto found = final_set.find(static_cast<Index>(i));
      one.tensor[i] = found == final_set.end() ? T{} : narrow<T>(found->second / one.divisor);
    }
    return one;
  }
};

TYPED_TEST_SUITE(Commit, testing::AllTypes);

TYPED_TEST(Commit, FollowsTheRulesOfPutBackAtEveryIndex) {
  testing::for_each_seed(1500, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    const auto expected = this->reference(one);
    testing::for_each_simd_target([&] {
      auto committed = one;
      this->run(committed);
      EXPECT_TRUE(testing::same_bits(committed.residual, expected.residual));
      EXPECT_TRUE(testing::same_bits(committed.tensor, expected.tensor));
    });
  });
}

TYPED_TEST(Commit, WhichPiecesTheTensorLiesInDoesNotShow) {
  testing::for_each_seed(400, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    std::mt19937_64 random(seed);
    const std::size_t longest = 1 + random() % (seed % 20 == 0 ? 10'000 : 200);
    const auto lengths = testing::random_cuts(one.tensor.size(), longest, random);
    auto expected = one;
    this->run(expected);
    testing::for_each_simd_target([&] {
      auto committed = one;
      const testing::Cut<typename TypeParam::T> cut(one.tensor, lengths, random);
      this->run(committed, cut.segments());
      EXPECT_TRUE(testing::same_bits(committed.residual, expected.residual));
      EXPECT_TRUE(testing::same_bits(cut.joined(), expected.tensor));
    });
  });
}

TYPED_TEST(Commit, NothingIsLostWhenTheResultIsOneRanksOwnSelection) {
  using Value = typename TestFixture::Value;
  testing::for_each_seed(300, [&](std::uint64_t seed) {
    auto one = this->random_case(seed);
    std::mt19937_64 random(seed);
    one.tensor =
        testing::random_values<typename TypeParam::T>(Kind::kGaussian, one.tensor.size(), random);
    one.dropped.clear();
    one.divisor = 1;
    const auto acc = testing::reference_acc(one.tensor, one.residual);
    for (std::size_t i = 0; i < one.own.indices.size(); ++i) {
      one.own.values[i] = acc[one.own.indices[i]];
    }
    one.result = one.own;
    const bool kept = !one.residual.empty();
    this->run(one);
    if (!kept) {
      return;
    }
    std::map<std::size_t, Value> result;
    for (std::size_t i = 0; i < one.result.indices.size(); ++i) {
      result[one.result.indices[i]] = one.result.values[i];
    }
    for (std::size_t i = 0; i < acc.size(); ++i) {
      const Value delivered = result.contains(i) ? result[i] : Value{0};
      ASSERT_EQ(delivered + one.residual[i], acc[i]) << i;
    }
  });
}

TYPED_TEST(Commit, DenormalsAreKeptEvenWhereTheHostFlushesThem) {
  std::mt19937_64 random(1);
  auto one = this->random_case(1);
  one.tensor = testing::random_values<typename TypeParam::T>(Kind::kSubnormal, 200, random);
  one.residual = testing::random_values<typename TestFixture::Value>(Kind::kSubnormal, 200, random);
  one.own = this->random_list(200, 5, random);
  one.result = this->random_list(200, 5, random);
  one.dropped = {this->random_list(200, 5, random)};
  const auto expected = this->reference(one);
  testing::for_each_simd_target([&] {
    auto committed = one;
    {
      const testing::FlushDenormals host;
      this->run(committed);
    }
    EXPECT_TRUE(testing::same_bits(committed.residual, expected.residual));
    EXPECT_TRUE(testing::same_bits(committed.tensor, expected.tensor));
  });
}

TYPED_TEST(Commit, MaskClearsWhereTheResidualOfWhatWasSentIsCleared) {
  using Value = typename TestFixture::Value;
  using Index = typename TestFixture::Index;
  testing::for_each_seed(200, [&](std::uint64_t seed) {
    const auto one = this->random_case(seed);
    std::vector<Value> momentum(one.tensor.size(), Value{1});
    mask(momentum.data(),
         StepLists<Value, Index>{
             .own = one.own.view(), .result = one.result.view(), .put_back = one.put_back});
    for (std::size_t i = 0; i < momentum.size(); ++i) {
      const auto in = [i](const auto& list) {
        return std::ranges::find(list.indices, static_cast<Index>(i)) != list.indices.end();
      };
      const bool cleared = in(one.own) && (one.put_back == PutBack::kMerged || in(one.result));
      ASSERT_EQ(momentum[i], cleared ? Value{0} : Value{1}) << i;
    }
  });
}

TYPED_TEST(Commit, AllocatesNothing) {
  auto one = this->random_case(20);
  one.residual.resize(one.tensor.size());
  const auto dropped = one.own;
  const auto dropped_view = dropped.view();
  const std::size_t before = support::allocations();
  commit<typename TypeParam::T, typename TestFixture::Value, typename TestFixture::Index>(
      one.tensor.data(), one.residual.data(), one.residual.size(),
      {.own = one.own.view(),
       .result = one.result.view(),
       .dropped = {&dropped_view, 1},
       .put_back = one.put_back},
      one.divisor);
  EXPECT_EQ(support::allocations(), before);
}

TYPED_TEST(Commit, RepresentableMeansThatEveryElementRoundsToAFiniteOne) {
  using T = typename TypeParam::T;
  using Value = typename TestFixture::Value;
  const auto all = [](std::initializer_list<Value> values, Value divisor) {
    List<Value, typename TestFixture::Index> list;
    for (const Value value : values) {
      list.push(static_cast<typename TestFixture::Index>(list.indices.size()), value);
    }
    return representable<T>(list.view(), divisor);
  };
  using Limits = std::numeric_limits<Value>;
  EXPECT_TRUE(all({}, 1));
  EXPECT_TRUE(all({Value{0}, Limits::denorm_min(), Value{-1000}}, 3));
  EXPECT_FALSE(all({Value{1}, Limits::infinity()}, 1));
  EXPECT_FALSE(all({Limits::quiet_NaN()}, 1));
  if constexpr (std::is_same_v<T, Float16>) {
    EXPECT_TRUE(all({65519.0F}, 1));
    EXPECT_FALSE(all({65520.0F}, 1));
    EXPECT_FALSE(all({1.0F, -131'072.0F}, 2));
    EXPECT_TRUE(all({-131'072.0F}, 4));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    EXPECT_FALSE(all({Limits::max()}, 1));
    EXPECT_TRUE(all({Limits::max()}, 2));
  } else {
    EXPECT_TRUE(all({Limits::max(), Limits::lowest()}, 1));
  }
}

}  // namespace
}  // namespace gtopk::sparse
