// The kernels of calls without a selection, on the CPU: bit for bit what the CPU's own code writes.
#include "src/gtopk/device/sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/gtopk/device/commit.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/device/sums_cases.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::HostExecutor;
using testing::InPieces;

template <class Param>
class DeviceSums : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  using Vector = testing::SumsVector<T>;
};

TYPED_TEST_SUITE(DeviceSums, testing::NarrowTypes);

TYPED_TEST(DeviceSums, AccumulatesAsTheCpuDoes) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::Vector::random(random);
    const auto expected = one.acc();
    const InPieces<T> pieces(one.tensor, one.residual, true, random);
    std::vector<Value> seen(one.d());
    HostExecutor executor(random(), 1 + random() % 4);
    executor.launch(executor.wide(), device::Accumulate<T>{pieces.view(), seen.data()});
    EXPECT_TRUE(testing::same_bits(seen, expected));
  });
}

TYPED_TEST(DeviceSums, GathersAsTheCpuDoes) {
  using T = typename TestFixture::T;
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  std::uint64_t finite_ones = 0;
  testing::for_each_seed(60, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::Vector::random(random);
    auto indices = testing::random_indices<Index>(one.d(), random);
    const auto expected = testing::gathered_on_the_cpu(one, indices);
    const InPieces<T> pieces(one.tensor, one.residual, true, random);
    std::vector<Value> seen(indices.size());
    std::uint64_t finite = 1;
    HostExecutor executor(random(), 1 + random() % 4);
    executor.launch(executor.wide(), device::Gather<T>{pieces.view(), indices.data(),
                                                       indices.size(), seen.data(), &finite});
    const bool spoiled = !indices.empty() && std::ranges::all_of(expected, [](Value value) {
      return std::isnan(value);
    });
    if (!indices.empty()) {
      EXPECT_EQ(finite != 0, !spoiled);
    }
    if (finite != 0) {
      EXPECT_TRUE(testing::same_bits(seen, expected));
      ++finite_ones;
    }
  });
  EXPECT_GE(finite_ones, support::seeds(15));
}

TYPED_TEST(DeviceSums, CommitsAllOfThemAsTheCpuDoes) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::Vector::random(random);
    const bool happened = seed % 3 != 0;
    const auto divisor = static_cast<Value>(1 + random() % 9);
    const auto sums = testing::random_values<Value>(testing::random_kind(random), one.d(), random);
    const auto expected = testing::committed_on_the_cpu(one, sums, happened, divisor);
    const InPieces<T> pieces(one.tensor, one.residual, true, random);
    const std::uint64_t did_happen = happened ? 1 : 0;
    HostExecutor executor(random(), 1 + random() % 4);
    executor.launch(executor.wide(),
                    device::CommitWhole<T>{pieces.view(), sums.data(), &did_happen, divisor});
    EXPECT_TRUE(testing::same_bits(pieces.joined(), expected.tensor));
    EXPECT_TRUE(testing::same_bits(one.residual, expected.residual));
  });
}

TYPED_TEST(DeviceSums, SumsOrLists_CommitsOnlyTheChosenKind) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(16, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t whole = seed % 2;
    const std::uint64_t happened = seed / 2 % 2;
    auto one = TestFixture::Vector::random(random);
    const auto before = one;
    const std::vector<Value> sums(one.d(), Value{3});
    const std::vector<Value> untouched(one.d(), Value{5});
    auto acc = untouched;
    const InPieces<T> pieces(one.tensor, one.residual, true, random);
    HostExecutor executor(random(), 1 + random() % 4);
    const auto commit_sums = [&] {
      executor.launch(executor.wide(), device::CommitWhole<T>{pieces.view(), sums.data(), &happened,
                                                              Value{1}, &whole});
    };
    const auto commit_lists = [&] {
      const EditCounts counts{.happened = whole == 0 ? happened : 0};
      device::commit<T>(executor, pieces.view(), nullptr, {}, &counts, Value{1}, &whole);
    };
    executor.launch(executor.wide(), device::Accumulate<T>{pieces.view(), acc.data(), &whole});
    EXPECT_EQ(testing::same_bits(acc, untouched), whole == 0);
    whole != 0 ? commit_lists() : commit_sums();
    EXPECT_TRUE(testing::same_bits(pieces.joined(), before.tensor));
    EXPECT_TRUE(testing::same_bits(one.residual, before.residual));
    whole != 0 ? commit_sums() : commit_lists();
    const T expected = happened == 0 ? narrow<T>(std::numeric_limits<Value>::quiet_NaN())
                                     : narrow<T>(whole != 0 ? Value{3} : Value{0});
    EXPECT_TRUE(testing::same_bits(pieces.joined(), std::vector<T>(one.d(), expected)));
  });
}

}  // namespace
}  // namespace gtopk::sparse
