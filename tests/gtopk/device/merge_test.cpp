// The kernels of a merge, on the CPU: the same bits as the CPU's own merge, whatever the order of
// threads and blocks and wherever the lists' shares begin.
#include "src/gtopk/device/merge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

#include "src/gtopk/merge/merge.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::DeviceMemory;
using testing::HostExecutor;

template <class Param>
class DeviceMerge : public ::testing::Test {
 protected:
  using Value = typename Param::Value;
  using Index = typename Param::Index;
  using Entry = testing::List<Value, Index>;

  static Entry random_list(std::size_t size, unsigned gap, std::mt19937_64& random) {
    // Also where 31 and 32 bits end.
    const std::uint64_t starts[] = {0, 0x7FFFFF00U, sizeof(Index) == 8 ? 0xFFFFFF00U : 0U};
    return testing::random_list_from<Value, Index>(starts[random() % 3], size, gap, random);
  }

  struct Outcome {
    bool finite = true;
    Entry kept;
    Entry dropped;
  };

  static Outcome on_the_cpu(const Entry& a, const Entry& b, std::size_t k) {
    const std::size_t all = a.indices.size() + b.indices.size();
    Outcome outcome;
    auto dropped = outcome.dropped.out(all);
    MergeScratch scratch;
    const Merged merged =
        merge(a.view(), b.view(), k, outcome.kept.out(std::min(k, all)), &dropped, scratch);
    outcome.finite = merged.finite;
    outcome.kept.shrink(merged.kept);
    outcome.dropped.shrink(merged.dropped);
    return outcome;
  }

  static Outcome on_the_device(const Entry& a, const Entry& b, std::size_t k, bool wants_dropped,
                               std::mt19937_64& random) {
    const std::size_t all = a.indices.size() + b.indices.size();
    const auto take = [&](device::Room& memory) {
      return device::MergeRoom<Value, Index>::in(memory, all);
    };
    DeviceMemory memory(take);
    device::Room dealt = memory.room();
    const auto room = take(dealt);
    HostExecutor executor(random(), 1 + random() % 4);
    device::Report report;
    Outcome outcome;
    EntriesOut<Value, Index> dropped;
    if (wants_dropped) {
      dropped = outcome.dropped.out(all);
    }
    device::merge(executor, a.view(), b.view(), k, room, outcome.kept.out(std::min(k, all)),
                  dropped, &report);
    outcome.finite = report.finite != 0;
    outcome.kept.shrink(report.kept);
    outcome.dropped.shrink(wants_dropped ? report.dropped : 0);
    return outcome;
  }

  static void expect_alike(const Entry& a, const Entry& b, std::size_t k, std::mt19937_64& random) {
    const Outcome expected = on_the_cpu(a, b, k);
    const Outcome seen = on_the_device(a, b, k, true, random);
    EXPECT_EQ(seen.finite, expected.finite);
    EXPECT_TRUE(testing::same_bits(seen.kept, expected.kept));
    EXPECT_TRUE(testing::same_bits(seen.dropped, expected.dropped));
    EXPECT_TRUE(testing::same_bits(on_the_device(b, a, k, false, random).kept, expected.kept));
  }
};

TYPED_TEST_SUITE(DeviceMerge, testing::AllListTypes);

TYPED_TEST(DeviceMerge, GivesWhatTheCpuGives) {
  testing::for_each_seed(150, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t largest = seed % 5 == 0 ? 6'000 : seed % 3 == 0 ? 6 : 300;
    const unsigned spread = 1 + static_cast<unsigned>(random() % 4);
    const auto a = TestFixture::random_list(random() % largest, spread, random);
    auto b = TestFixture::random_list(random() % largest, spread, random);
    const std::size_t k = random() % (largest + 2);
    TestFixture::expect_alike(a, b, k, random);
    b.indices = a.indices;  // every index in both; some sums cancel
    b.values = a.values;
    for (auto& value : b.values) {
      value = random() % 2 == 0 ? -value : value;
    }
    TestFixture::expect_alike(a, b, k, random);
  });
}

TYPED_TEST(DeviceMerge, NoticesSumsThatAreNotFinite) {
  using Value = typename TestFixture::Value;
  std::mt19937_64 random(3);
  auto a = TestFixture::random_list(3000, 2, random);
  const auto b = a;
  a.values[1234] = std::numeric_limits<Value>::max();
  auto too_large = b;
  too_large.values[1234] = std::numeric_limits<Value>::max();
  TestFixture::expect_alike(a, too_large, 100, random);
  TestFixture::expect_alike(a, too_large, 0, random);
  a.values[1234] = std::numeric_limits<Value>::quiet_NaN();
  TestFixture::expect_alike(a, b, 5000, random);
}

}  // namespace
}  // namespace gtopk::sparse
