// The kernels of a merge, on the CPU: the same bits as the CPU's own merge, whatever the order of
// threads and blocks and wherever the lists' shares begin.
#include "src/gtopk/device/merge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "src/gtopk/device/lists.hpp"
#include "tests/gtopk/device/merge_cases.hpp"
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
  using Case = testing::MergeCase<Value, Index>;
  using Outcome = testing::MergeOutcome<Value, Index>;

  static Outcome on_the_device(const Case& one, bool wants_dropped, std::mt19937_64& random) {
    const std::size_t all = one.all();
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
    device::merge(executor, one.a.view(), one.b.view(), one.k, room,
                  outcome.kept.out(std::min(one.k, all)), dropped, &report);
    outcome.finite = report.finite != 0;
    outcome.kept.shrink(report.kept);
    outcome.dropped.shrink(wants_dropped ? report.dropped : 0);
    return outcome;
  }

  static void expect_united_alike(const Case& one, std::mt19937_64& random) {
    const Outcome expected = testing::united_on_the_cpu(one);
    const auto take = [&](device::Room& memory) {
      return device::MergeRoom<Value, Index>::in(memory, one.all());
    };
    DeviceMemory memory(take);
    device::Room dealt = memory.room();
    auto room = take(dealt);
    Outcome seen;
    room.sum.entries = seen.kept.out(one.all());
    HostExecutor executor(random(), 1 + random() % 4);
    device::Report report{.kept = 0, .dropped = 0, .finite = 1};
    device::unite(executor, one.a.view(), one.b.view(), room, &report);
    EXPECT_EQ(report.finite != 0, expected.finite);
    EXPECT_EQ(report.dropped, 0U);
    seen.kept.shrink(expected.finite ? report.kept : 0);
    EXPECT_TRUE(testing::same_bits(seen.kept, expected.kept));
  }

  static void expect_alike(const Case& one, std::mt19937_64& random) {
    const Outcome expected = testing::merged_on_the_cpu(one);
    const Outcome seen = on_the_device(one, true, random);
    EXPECT_EQ(seen.finite, expected.finite);
    EXPECT_TRUE(testing::same_bits(seen.kept, expected.kept));
    EXPECT_TRUE(testing::same_bits(seen.dropped, expected.dropped));
    EXPECT_TRUE(
        testing::same_bits(on_the_device(one.swapped(), false, random).kept, expected.kept));
    expect_united_alike(one, random);
  }
};

TYPED_TEST_SUITE(DeviceMerge, testing::AllListTypes);

TYPED_TEST(DeviceMerge, GivesWhatTheCpuGives) {
  testing::for_each_seed(150, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(seed, random);
    TestFixture::expect_alike(one, random);
    TestFixture::expect_alike(TestFixture::Case::cancelling(one, random), random);
  });
}

TYPED_TEST(DeviceMerge, NoticesSumsThatAreNotFinite) {
  using Value = typename TestFixture::Value;
  using Index = typename TestFixture::Index;
  std::mt19937_64 random(3);
  testing::for_each_infinite_sum<Value, Index>(
      [&](const auto& one) { TestFixture::expect_alike(one, random); });
}

// A list as a damaged message may hold it: the merge ends, and nothing of it is kept.
TYPED_TEST(DeviceMerge, KeepsNothingOfAListWhoseIndicesDoNotAscendBelowD) {
  using Value = typename TestFixture::Value;
  using Index = typename TestFixture::Index;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = testing::UnsoundCase<Value, Index>::random(seed, random);
    const auto& [a, b, k] = one.lists;
    const bool checked_before = seed % 2 == 0;  // by the launches that decode a message
    std::uint64_t sound = checked_before && !one.sound ? 0 : 1;
    HostExecutor executor(random(), 1 + random() % 4);
    const std::size_t both = one.lists.all();
    const auto take = [&](device::Room& memory) {
      return device::MergeRoom<Value, Index>::in(memory, both);
    };
    DeviceMemory memory(take);
    device::Room dealt = memory.room();
    const auto room = take(dealt);
    device::Report report;
    testing::List<Value, Index> kept;
    testing::List<Value, Index> dropped;
    device::merge(executor, a.view(), b.view(), k, room, kept.out(k), dropped.out(both), &report,
                  {&sound, checked_before ? 0 : one.d});
    EXPECT_EQ(sound != 0, one.sound);
    EXPECT_EQ(report.kept, sound != 0 ? k : 0U);
    EXPECT_EQ(report.dropped != 0, sound != 0);
  });
}

}  // namespace
}  // namespace gtopk::sparse
