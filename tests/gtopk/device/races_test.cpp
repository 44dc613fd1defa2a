// What real threads show under ThreadSanitizer, and no order of threads that take turns: two
// kernels, each with a bug, whose results are right with HostExecutor.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "src/gtopk/device/block.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::HostExecutor;
using testing::ThreadsExecutor;

constexpr std::uint64_t kTwoBlocks = 2;

/// Counts threads, but not by atomic additions.
struct LosesUpdates {
  struct Shared {};

  std::uint64_t* threads;

  template <class Block>
  void operator()(Block& block, Shared& /*shared*/) const {
    block.each([&](unsigned) { ++*threads; });
  }
};

/// The block that ends last reads what the other has written, without a fence on either side.
struct HandsOverUnfenced {
  struct Shared {
    std::uint32_t is_last;
  };

  std::uint64_t* of_block;
  std::uint32_t* ended;
  std::uint64_t* sum;

  template <class Block>
  void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        of_block[block.number()] = block.number() + 1;
        shared.is_last = device::add(*ended, 1U) + 1 == block.count() ? 1 : 0;
      }
    });
    if (block.read(shared.is_last) == 0) {
      return;
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *sum = std::accumulate(of_block, of_block + block.count(), std::uint64_t{0});
      }
    });
  }
};

template <class Executor>
std::uint64_t count_losing_updates() {
  std::uint64_t threads = 0;
  Executor(1, kTwoBlocks).launch(kTwoBlocks, LosesUpdates{&threads});
  return threads;
}

template <class Executor>
std::uint64_t sum_handed_over_unfenced() {
  std::vector<std::uint64_t> of_block(kTwoBlocks);
  std::uint32_t ended = 0;
  std::uint64_t sum = 0;
  Executor(1, kTwoBlocks).launch(kTwoBlocks, HandsOverUnfenced{of_block.data(), &ended, &sum});
  return sum;
}

TEST(Races, ShowInNoResultWhileThreadsTakeTurns) {
  EXPECT_EQ(count_losing_updates<HostExecutor>(), kTwoBlocks * device::kThreads);
  EXPECT_EQ(sum_handed_over_unfenced<HostExecutor>(), kTwoBlocks * (kTwoBlocks + 1) / 2);
}

#if defined(__SANITIZE_THREAD__)

class RacesOfThreads : public ::testing::Test {
 protected:
  // The child process starts from the beginning, as a fork would not have the executor's threads.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static constexpr int kExitCode = 66;  // ThreadSanitizer's own
};

TEST_F(RacesOfThreads, AreFoundWhereAnUpdateMayBeLost) {
  EXPECT_EXIT((count_losing_updates<ThreadsExecutor>(), std::exit(0)),
              ::testing::ExitedWithCode(kExitCode), "data race");
}

TEST_F(RacesOfThreads, AreFoundWhereMemoryIsHandedOverUnfenced) {
  EXPECT_EXIT((sum_handed_over_unfenced<ThreadsExecutor>(), std::exit(0)),
              ::testing::ExitedWithCode(kExitCode), "data race");
}

#endif

}  // namespace
}  // namespace gtopk::sparse
