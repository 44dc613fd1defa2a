// The kernels of the count-sketch, on the CPU: its cells, and what is heavy in it, are the CPU's
// own, bit for bit, in whatever order blocks and threads come by.
#include "src/gtopk/device/sketch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::DeviceMemory;
using testing::HostExecutor;
using testing::InPieces;

template <class Param>
class DeviceSketch : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  static std::vector<Value> on_the_cpu(const std::vector<Value>& acc, std::uint64_t seed,
                                       std::uint64_t columns) {
    const CountSketch sketch(seed, columns);
    std::vector<Value> cells(sketch.cells(), std::numeric_limits<Value>::quiet_NaN());
    Key<Value> largest = 0;
    for (const Value value : acc) {
      largest = std::max(largest, magnitude_key(value));
    }
    if (!is_finite_key<Value>(largest)) {
      return cells;
    }
    const auto point = FixedPoint::of<Value>(largest, acc.size());
    std::vector<std::uint64_t> numbers(sketch.cells());
    for (std::size_t row = 0; row < CountSketch::kRows; ++row) {
      for (std::size_t begin = 0; begin < acc.size(); begin += CountSketch::kStretch) {
        const std::size_t length = std::min(CountSketch::kStretch, acc.size() - begin);
        sketch.add(row, begin, std::span<const Value>(&acc[begin], length), point,
                   numbers.data() + row * columns);
      }
    }
    std::ranges::transform(numbers, cells.begin(), [&](std::uint64_t number) {
      return point.template value<Value>(number);
    });
    return cells;
  }
};

TYPED_TEST_SUITE(DeviceSketch, testing::AllTypes);

TYPED_TEST(DeviceSketch, HasTheCellsOfTheCpus) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t d = 1 + random() % 9'000;
    auto tensor = testing::random_values<T>(testing::random_kind(random), d, random);
    std::vector<Value> residual;
    if (seed % 3 != 0) {
      residual = testing::random_values<Value>(testing::random_kind(random), d, random);
    }
    if (seed % 5 == 0) {
      tensor[random() % d] = narrow<T>(std::numeric_limits<Value>::infinity());
    }
    const std::uint64_t columns = 1 + random() % 50;
    std::vector<Value> acc(d);
    (void)accumulate<T, Value>(tensor.data(), residual.empty() ? nullptr : residual.data(),
                               acc.data(), d);
    const auto expected = TestFixture::on_the_cpu(acc, seed, columns);

    const InPieces<T> pieces(tensor, residual, true, random);
    const auto hashes = SketchHashes::drawn_from(seed, columns);
    const auto in = [&](device::Room& room) {
      return device::SketchRoom<Value>::in(room, hashes.cells(), d, 1);
    };
    DeviceMemory memory(in);
    device::Room dealt = memory.room();
    std::vector<Value> cells(hashes.cells());
    HostExecutor executor(random(), 1 + random() % 4);
    device::sketch<T>(executor, pieces.view(), d, hashes, in(dealt), cells.data());
    if (std::isnan(expected.front())) {
      EXPECT_TRUE(std::ranges::all_of(cells, [](Value cell) { return std::isnan(cell); }));
    } else {
      EXPECT_TRUE(testing::same_bits(cells, expected));
    }
  });
}

TYPED_TEST(DeviceSketch, FindsWhatTheCpuFinds) {
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(30, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t d = 1 + random() % 9'000;
    const std::uint64_t columns = 1 + random() % 50;
    const std::size_t most = 1 + random() % 300;
    const auto hashes = SketchHashes::drawn_from(seed, columns);
    auto cells =
        testing::random_values<Value>(testing::random_kind(random), hashes.cells(), random);
    std::ranges::replace_if(cells, [](Value cell) { return !std::isfinite(cell); }, Value{0});

    std::vector<Index> expected(most);
    std::vector<Value> estimates(most);
    SelectScratch scratch;
    expected.resize(unsketch<Value, Index>(CountSketch(seed, columns), cells.data(), d, most,
                                           {expected.data(), estimates.data()}, scratch));

    const auto in = [&](device::Room& room) {
      return device::SketchRoom<Value>::in(room, hashes.cells(), d, most);
    };
    DeviceMemory memory(in);
    device::Room dealt = memory.room();
    std::vector<Index> seen(most);
    device::Report report;
    HostExecutor executor(random(), 1 + random() % 4);
    device::find_heaviest<Value, Index>(executor, d, hashes, cells.data(), most, in(dealt),
                                        {seen.data(), estimates.data()}, &report);
    ASSERT_LE(report.kept, most);
    seen.resize(report.kept);
    EXPECT_EQ(seen, expected);
  });
}

// Of a power of two, so that each rounding is known.
TEST(FixedPoint, RoundsToTheGridThatTheLargestValueGives) {
  for (const double largest : {1.0, 0x1p-1022, 0x1p-1074, 0x1p1023, 3.5}) {
    for (const std::uint64_t d : {1ULL, 1000ULL, 1ULL << 25U, 1ULL << 33U}) {
      const auto point = FixedPoint::of<double>(magnitude_key(largest), d);
      EXPECT_EQ(point.value<double>(point.round(-largest)), largest < 0x1p-1060 ? 0.0 : -largest)
          << largest << " of " << d;
      // d times the largest is no overflow.
      const auto number = static_cast<std::int64_t>(point.round(largest));
      EXPECT_LT(std::ldexp(static_cast<double>(number), 0) * static_cast<double>(d), 0x1p62);
    }
  }
  // Ties to even: the grid of numbers below 2 among 2^20 elements is 2^-40.
  const auto point = FixedPoint::of<double>(magnitude_key(1.0), 1U << 20U);
  EXPECT_EQ(point.round(0x1.8p-41), 1U);
  EXPECT_EQ(point.round(0x1p-41), 0U);
  EXPECT_EQ(point.round(0x1.8p-40), 2U);
}

}  // namespace
}  // namespace gtopk::sparse
