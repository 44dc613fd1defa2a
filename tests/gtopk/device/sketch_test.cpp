// The kernels of the count-sketch, on the CPU: its cells, and what is heavy in it, are the CPU's
// own, bit for bit, in whatever order blocks and threads come by.
#include "src/gtopk/device/sketch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/device/sketch_cases.hpp"
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
};

TYPED_TEST_SUITE(DeviceSketch, testing::NarrowTypes);

TYPED_TEST(DeviceSketch, HasTheCellsOfTheCpus) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto [tensor, residual, columns] = testing::SketchCase<T>::random(seed, random);
    const std::size_t d = tensor.size();
    const auto expected = testing::cells_on_the_cpu<T>({tensor, residual, columns}, seed);
    const InPieces<T> pieces(tensor, residual, true, random);
    const auto hashes = SketchHashes::drawn_from(seed, columns);
    const auto in = [&](device::Arena& arena) {
      return device::SketchWorkspace<Value>::in(arena, hashes.cells(), d, 1);
    };
    DeviceMemory memory(in);
    device::Arena arena = memory.arena();
    std::vector<Value> cells(hashes.cells());
    HostExecutor executor(random(), 1 + random() % 4);
    device::sketch<T>(executor, pieces.view(), d, hashes, in(arena), cells.data());
    EXPECT_TRUE(testing::same_cells(cells, expected));
  });
}

TYPED_TEST(DeviceSketch, FindsWhatTheCpuFinds) {
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(30, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = testing::HeavyCase<Value>::random(random);
    const auto hashes = SketchHashes::drawn_from(seed, one.columns);
    const auto expected = testing::heaviest_on_the_cpu<Index>(one, seed);
    const auto in = [&](device::Arena& arena) {
      return device::SketchWorkspace<Value>::in(arena, hashes.cells(), one.d, one.most);
    };
    DeviceMemory memory(in);
    device::Arena arena = memory.arena();
    std::vector<Index> seen(one.most);
    std::vector<Value> estimates(one.most);
    device::Report report;
    HostExecutor executor(random(), 1 + random() % 4);
    device::find_heaviest<Value>(executor, one.d, hashes, one.cells.data(), one.most, in(arena),
                                 {seen.data(), estimates.data()}, &report);
    ASSERT_LE(report.kept, one.most);
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
