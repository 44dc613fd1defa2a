// The k-th largest key and its neighbours' counts, against a full sort, on every SIMD target.
#include "src/gtopk/value/kth_key.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "src/gtopk/value/selection_order.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/gtopk/value/simd_targets.hpp"

namespace gtopk::sparse {
namespace {

template <class Value>
class KthKeyTest : public ::testing::Test {};
using Values = ::testing::Types<float, double>;
TYPED_TEST_SUITE(KthKeyTest, Values);

TYPED_TEST(KthKeyTest, AgreesWithAFullSort) {
  testing::for_each_seed(600, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t size = 1 + random() % (seed % 10 == 0 ? 20'000 : 1'500);
    const std::size_t k = 1 + random() % size;
    std::vector<Key<TypeParam>> keys;
    for (const TypeParam value :
         testing::random_values<TypeParam>(testing::random_kind(random), size, random)) {
      keys.push_back(magnitude_key(value));
    }
    std::vector<Key<TypeParam>> sorted = keys;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const auto kth = sorted[k - 1];
    const auto larger = static_cast<std::size_t>(
        std::count_if(keys.begin(), keys.end(), [&](auto key) { return key > kth; }));
    const auto equal = static_cast<std::size_t>(std::count(keys.begin(), keys.end(), kth));
    testing::for_each_simd_target([&] {
      auto work = keys;
      const auto found = kth_largest(work.data(), size, k);
      EXPECT_EQ(found.key, kth);
      EXPECT_EQ(found.larger, larger);
      EXPECT_EQ(found.equal, equal);
    });
  });
}

}  // namespace
}  // namespace gtopk::sparse
