// The kernels of calls without a selection, on the CPU: bit for bit what the CPU's own code writes.
#include "src/gtopk/device/sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/device/commit.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
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

  struct Vector {
    std::vector<T> tensor;
    std::vector<Value> residual;  // empty: none

    [[nodiscard]] std::size_t d() const { return tensor.size(); }
    [[nodiscard]] Value* kept() { return residual.empty() ? nullptr : residual.data(); }
  };

  static Vector random_vector(std::mt19937_64& random) {
    Vector one;
    const std::size_t d = 1 + random() % 9'000;
    one.tensor = testing::random_values<T>(testing::random_kind(random), d, random);
    if (random() % 4 != 0) {
      one.residual = testing::random_values<Value>(testing::random_kind(random), d, random);
    }
    if (random() % 3 == 0) {
      one.tensor[random() % d] = narrow<T>(std::numeric_limits<Value>::infinity());
    }
    return one;
  }
};

TYPED_TEST_SUITE(DeviceSums, testing::AllTypes);

TYPED_TEST(DeviceSums, AccumulatesAsTheCpuDoes) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::random_vector(random);
    std::vector<Value> expected(one.d());
    (void)accumulate<T, Value>(one.tensor.data(), one.kept(), expected.data(), one.d());
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
  int finite_ones = 0;
  testing::for_each_seed(60, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::random_vector(random);
    std::vector<Index> indices(one.d());
    std::iota(indices.begin(), indices.end(), Index{0});
    std::ranges::shuffle(indices, random);
    indices.resize(random() % (one.d() + 1));
    std::ranges::sort(indices);
    SparseCall call;
    call.dtype = testing::kTypeOf<T>;
    call.tensor = Segments<void>(one.tensor.data());
    call.residual = one.kept();
    call.d = one.d();
    std::vector<Value> expected(indices.size());
    List list;
    list.indices = reinterpret_cast<std::byte*>(indices.data());
    list.values = reinterpret_cast<std::byte*>(expected.data());
    list.size = indices.size();
    gather(call, {accumulation_type(call.dtype), sizeof(Index)}, list);

    const InPieces<T> pieces(one.tensor, one.residual, true, random);
    std::vector<Value> seen(indices.size());
    std::uint64_t finite = 1;
    HostExecutor executor(random(), 1 + random() % 4);
    executor.launch(executor.wide(),
                    device::Gather<T, Index>{pieces.view(), indices.data(), indices.size(),
                                             seen.data(), &finite});
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
  EXPECT_GE(finite_ones, 15);
}

TYPED_TEST(DeviceSums, CommitsAllOfThemAsTheCpuDoes) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::random_vector(random);
    const bool happened = seed % 3 != 0;
    const auto divisor = static_cast<Value>(1 + random() % 9);
    const auto sums = testing::random_values<Value>(testing::random_kind(random), one.d(), random);
    auto expected = one;
    if (happened) {
      commit_whole<T, Value>(expected.tensor.data(), expected.kept(), sums.data(), one.d(),
                             divisor);
    } else {
      fill_nan(Segments<T>(expected.tensor.data()), one.d());
    }
    const InPieces<T> pieces(one.tensor, one.residual, true, random);
    const std::uint64_t did_happen = happened ? 1 : 0;
    HostExecutor executor(random(), 1 + random() % 4);
    executor.launch(executor.wide(),
                    device::CommitWhole<T>{pieces.view(), sums.data(), &did_happen, divisor});
    EXPECT_TRUE(testing::same_bits(pieces.joined(), expected.tensor));
    EXPECT_TRUE(testing::same_bits(one.residual, expected.residual));
  });
}

TYPED_TEST(DeviceSums, AndListsAreCommittedOnlyIfItIsTheirTurn) {
  using T = typename TestFixture::T;
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(16, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t whole = seed % 2;
    const std::uint64_t happened = seed / 2 % 2;
    auto one = TestFixture::random_vector(random);
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
      device::commit<T, Index>(executor, pieces.view(), nullptr, {}, &counts, Value{1}, &whole);
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
