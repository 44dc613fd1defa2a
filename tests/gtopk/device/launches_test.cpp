// How kernels are put together: what one launch may consist of, and how many a call takes, which is
// most of its time where lists are short.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <typeindex>
#include <typeinfo>
#include <vector>

#include "src/cuda/launches.hpp"
#include "src/cuda/typed_calls.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::HostExecutor;

/// Counts launches, and launches nothing.
class CountingExecutor {
 public:
  [[nodiscard]] static std::uint64_t wide() { return 1; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

  template <class Kernel>
  void launch(std::uint64_t /*blocks*/, const Kernel& /*kernel*/) {
    ++count_;
  }

 private:
  std::uint64_t count_ = 0;
};

/// As counted, which is as declared.
template <class Call, class Launch>
std::uint64_t launches_of(const Call& call, Launch launch) {
  CountingExecutor executor;
  launch(executor, call);
  const cuda::Launches declared = cuda::launches_of(call);
  EXPECT_EQ(executor.count(), declared.count) << declared.call;
  return executor.count();
}

template <class T = float>
std::uint64_t launches_of_selection(SelectionRule::Kind kind, std::uint64_t d = 0) {
  cuda::SelectCall call;
  call.acc.dtype = testing::kTypeOf<T>;
  call.acc.d = d;
  call.rule = {.kind = kind, .k = 1, .most = 2, .stride = 1, .block = 1};
  return launches_of(call, [](auto& executor, const auto& one) { cuda::select<T>(executor, one); });
}

TEST(Launches, OfSelectionsAreFew) {
  using Kind = SelectionRule::Kind;
  EXPECT_EQ(launches_of_selection(Kind::kExact), 6U);
  EXPECT_EQ(launches_of_selection(Kind::kExact, 1'000'000), 9U);
  EXPECT_EQ(launches_of_selection<double>(Kind::kExact, 1'000'000), 12U);
  EXPECT_EQ(launches_of_selection(Kind::kNormal), 7U);
  EXPECT_EQ(launches_of_selection(Kind::kSample), 9U);
  EXPECT_EQ(launches_of_selection(Kind::kThreshold), 6U);
  for (const Kind kind : {Kind::kNormal, Kind::kSample, Kind::kThreshold}) {
    EXPECT_EQ(launches_of_selection(kind, 1'000'000), 9U);
    EXPECT_EQ(launches_of_selection<double>(kind, 1'000'000), kind == Kind::kSample ? 15U : 12U);
  }
  EXPECT_EQ(launches_of_selection(Kind::kBlocks), 3U);
}

TEST(Launches, OfOtherCallsAreFew) {
  const EditCounts counts;
  cuda::CommitCall commit;
  commit.counts = &counts;
  EXPECT_EQ(launches_of(commit, [](auto& to, const auto& one) { cuda::commit<float>(to, one); }),
            3U);
  cuda::CommitWholeCall whole;
  whole.counts = &counts;
  EXPECT_EQ(
      launches_of(whole, [](auto& to, const auto& one) { cuda::commit_whole<float>(to, one); }),
      1U);
  EXPECT_EQ(launches_of(cuda::AccumulateCall{},
                        [](auto& to, const auto& one) { cuda::accumulate<float>(to, one); }),
            1U);
  EXPECT_EQ(launches_of(cuda::GatherCall{},
                        [](auto& to, const auto& one) { cuda::gather<float>(to, one); }),
            1U);
  EXPECT_EQ(launches_of(cuda::SketchCall{},
                        [](auto& to, const auto& one) { cuda::sketch<float>(to, one); }),
            4U);
  cuda::FindCall find;
  find.d = 1'000'000;
  find.most = 1;
  EXPECT_EQ(launches_of(find, [](auto& to, const auto& one) { cuda::find<float>(to, one); }),
            2U + 9U);
}

/// Notes the kernels, and launches nothing.
class NotingExecutor {
 public:
  [[nodiscard]] static std::uint64_t wide() { return 1; }
  [[nodiscard]] const std::set<std::type_index>& kernels() const { return kernels_; }

  template <class Kernel>
  void launch(std::uint64_t /*blocks*/, const Kernel& /*kernel*/) {
    kernels_.insert(typeid(Kernel));
  }

 private:
  std::set<std::type_index> kernels_;
};

// A kernel that was not loaded beforehand might synchronise the device (docs/devices.md).
TEST(Launches, AreOfKernelsThatWereLoaded) {
  using Kind = SelectionRule::Kind;
  NotingExecutor loaded;
  cuda::launch_all_of_type<float>(loaded);
  cuda::launch_all_of_values<float>(loaded);
  NotingExecutor launched;
  for (const std::uint64_t d : {std::uint64_t{1000}, std::uint64_t{600'000}}) {
    for (const Kind kind :
         {Kind::kExact, Kind::kNormal, Kind::kSample, Kind::kThreshold, Kind::kBlocks}) {
      cuda::SelectCall call;
      call.acc.d = d;
      call.rule = {.kind = kind, .k = 100, .most = 134, .stride = 7, .block = 64};
      cuda::select<float>(launched, call);
    }
    cuda::FindCall find;
    find.d = d;
    find.most = 800;
    cuda::find<float>(launched, find);
  }
  EXPECT_EQ(launched.kernels().size(), 23U);
  for (const std::type_index& kernel : launched.kernels()) {
    EXPECT_TRUE(loaded.kernels().contains(kernel)) << kernel.name();
  }
}

/// Each block adds its number, from one on.
struct AddNumbers {
  struct Shared {
    std::uint64_t unused[64];
  };

  std::uint64_t* sum;

  template <class Block>
  void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread < 64) {
        shared.unused[thread] = thread;
      }
      if (thread == 0) {
        *sum += block.number() + 1;
      }
    });
  }
};

struct TakeSum {
  struct Shared {
    std::uint64_t seen;
  };

  const std::uint64_t* sum;
  std::vector<std::uint64_t>* taken;

  template <class Block>
  void operator()(Block& block, Shared& shared) const {
    ASSERT_EQ(block.number(), 0U);
    ASSERT_EQ(block.count(), 1U);
    block.each([&](unsigned thread) {
      if (thread == 0) {
        shared.seen = *sum;
      }
    });
    taken->push_back(block.read(shared.seen));
  }
};

TEST(OneLaunch, EndsWithASecondKernelBehindAllBlocks) {
  for (const std::uint64_t blocks : {1, 2, 7, 300}) {
    HostExecutor executor(blocks, blocks);
    std::uint64_t sum = 0;
    std::uint32_t ended = 0;
    std::vector<std::uint64_t> taken;
    const TakeSum take{&sum, &taken};
    for (int launch = 0; launch < 3; ++launch) {  // the counter is ready for the next one
      sum = 0;
      device::launch(executor, device::Step{blocks, AddNumbers{&sum}, device::InTurn{take, take}},
                     &ended);
      EXPECT_EQ(ended, 0U);
    }
    EXPECT_EQ(executor.launches(), 3U);
    EXPECT_EQ(taken, std::vector<std::uint64_t>(6, blocks * (blocks + 1) / 2));
  }
}

TEST(OneLaunch, HasNoMoreBlocksThanParts) {
  const HostExecutor executor(1, 7);
  EXPECT_EQ(device::blocks_for(executor, 0), 1U);
  EXPECT_EQ(device::blocks_for(executor, 6), 6U);
  EXPECT_EQ(device::blocks_for(executor, 8), 7U);
}

// Not in descending order, as a walk from piece to piece does not go back (Run::with_elements()).
TEST(EachLoaded, LoadsInOrderOnlyWhatTheSameThreadVisits) {
  for (const unsigned size : {1U, 255U, 257U, 600U, 2047U, 2049U, 4095U}) {
    for (unsigned thread = 0; thread < device::kThreads; ++thread) {
      std::vector<std::size_t> loaded;
      std::set<std::size_t> visited;
      device::each_loaded(
          thread, size,
          [&](std::size_t i) {
            loaded.push_back(i);
            return 1.0F;
          },
          [&](unsigned i, float) { visited.insert(i); });
      EXPECT_TRUE(std::ranges::is_sorted(loaded));
      EXPECT_EQ(std::set(loaded.begin(), loaded.end()), visited)
          << "thread " << thread << " of " << size << " elements";
    }
  }
}

TEST(EachLoaded, VisitsEveryElementOnceWithItsValue) {
  for (const unsigned size : {0U, 1U, 255U, 256U, 257U, 2047U, 2048U, 2049U, 4096U}) {
    std::vector<double> values(size);
    std::iota(values.begin(), values.end(), 1.0);
    const auto visited_as = [&]<class Value>(Value) {
      std::vector<double> seen(size);
      for (unsigned thread = 0; thread < device::kThreads; ++thread) {
        device::each_loaded(
            thread, size, [&](unsigned i) { return static_cast<Value>(values.at(i)); },
            [&](unsigned i, Value value) { seen.at(i) += value; });
      }
      return seen;
    };
    EXPECT_EQ(visited_as(float{}), values);
    EXPECT_EQ(visited_as(double{}), values);
  }
}

}  // namespace
}  // namespace gtopk::sparse
