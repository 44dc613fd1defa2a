// The kernels of a merge, on the CPU: the same bits as the CPU's own merge, whatever the order of
// threads and blocks and wherever the lists' shares begin.
#include "src/gtopk/device/merge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>

#include "src/gtopk/device/lists.hpp"
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

  static void expect_united_alike(const Entry& a, const Entry& b, std::mt19937_64& random) {
    const std::size_t all = a.indices.size() + b.indices.size();
    Outcome expected;
    const Merged united = unite(a.view(), b.view(), expected.kept.out(all));
    expected.kept.shrink(united.kept);
    const auto take = [&](device::Room& memory) {
      return device::MergeRoom<Value, Index>::in(memory, all);
    };
    DeviceMemory memory(take);
    device::Room dealt = memory.room();
    auto room = take(dealt);
    Outcome seen;
    room.sum.entries = seen.kept.out(all);
    HostExecutor executor(random(), 1 + random() % 4);
    device::Report report{.kept = 0, .dropped = 0, .finite = 1};
    device::unite(executor, a.view(), b.view(), room.sum, &report);
    EXPECT_EQ(report.finite != 0, united.finite);
    EXPECT_EQ(report.dropped, 0U);
    seen.kept.shrink(united.finite ? report.kept : 0);
    EXPECT_TRUE(testing::same_bits(seen.kept, expected.kept));
  }

  static void expect_alike(const Entry& a, const Entry& b, std::size_t k, std::mt19937_64& random) {
    const Outcome expected = on_the_cpu(a, b, k);
    const Outcome seen = on_the_device(a, b, k, true, random);
    EXPECT_EQ(seen.finite, expected.finite);
    EXPECT_TRUE(testing::same_bits(seen.kept, expected.kept));
    EXPECT_TRUE(testing::same_bits(seen.dropped, expected.dropped));
    EXPECT_TRUE(testing::same_bits(on_the_device(b, a, k, false, random).kept, expected.kept));
    expect_united_alike(a, b, random);
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

// A list as a damaged message may hold it: the merge ends, and nothing of it is kept.
TYPED_TEST(DeviceMerge, KeepsNothingOfAListWhoseIndicesDoNotAscendBelowD) {
  using Value = typename TestFixture::Value;
  using Index = typename TestFixture::Index;
  testing::for_each_seed(40, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto a = testing::random_list_below<Value, Index>(20'000, 3, random);
    auto b = testing::random_list_below<Value, Index>(20'000, 1 + seed % 5, random);
    std::uint64_t d = 20'000;
    const std::size_t at = 1 + random() % (b.indices.size() - 1);
    switch (seed % 4) {
      case 0:
        break;
      case 1:
        std::swap(b.indices[at], b.indices[at - 1]);
        break;
      case 2:
        b.indices[at] = b.indices[at - 1];
        break;
      default:
        d = b.indices.back();
    }
    std::uint64_t sound = 1;
    HostExecutor executor(random(), 1 + random() % 4);
    executor.launch(executor.wide(),
                    device::CheckIndices<Index>{b.indices.data(), b.indices.size(), d, &sound});
    EXPECT_EQ(sound, seed % 4 == 0 ? 1U : 0U);
    const std::size_t both = a.indices.size() + b.indices.size();
    const auto take = [&](device::Room& memory) {
      return device::MergeRoom<Value, Index>::in(memory, both);
    };
    DeviceMemory memory(take);
    device::Room dealt = memory.room();
    const auto room = take(dealt);
    device::Report report;
    typename TestFixture::Entry kept;
    typename TestFixture::Entry dropped;
    device::merge(executor, a.view(), b.view(), 500, room, kept.out(500), dropped.out(both),
                  &report, &sound);
    EXPECT_EQ(report.kept, sound != 0 ? 500U : 0U);
    EXPECT_EQ(report.dropped != 0, sound != 0);
  });
}

}  // namespace
}  // namespace gtopk::sparse
