// GPU room, tests: an answer about acc that was enqueued ahead of its question, over a driver of a
// few functions that runs nothing by itself: whoever asks is told once, and in any case.
#include "src/gpu/acc_kernels.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>

namespace gtopk::gpu {
namespace {

/// What is behind the answer on the stream.
std::pair<Driver::HostFunction, void*>& behind() {
  static std::pair<Driver::HostFunction, void*> one;
  return one;
}

Driver driver_with_waits() {
  Driver driver;
  driver.wait_value = [](Driver::Stream, std::uint64_t, std::uint32_t, unsigned) { return 0; };
  driver.launch_host_function = [](Driver::Stream, Driver::HostFunction call, void* argument) {
    behind() = {call, argument};
    return 0;
  };
  return driver;
}

class AccKernelsAhead : public testing::Test {
 protected:
  AccKernelsAhead() {
    kernels_.accumulate = [](const cuda::AccumulateCall&, void*) { return 0; };
    asking_.accumulates_by({});
    asking_.expect_answer_ahead();
    asking_.answer_ahead(nullptr);
  }

  void ask() {
    asking_.accumulate([this](const std::exception_ptr& why) {
      ++told_;
      failed_ = why != nullptr;
    });
  }
  void fail() { asking_.broken(std::make_exception_ptr(std::runtime_error("it has failed"))); }
  static void answer() { behind().first(behind().second); }

  const Driver driver_ = driver_with_waits();
  cuda::Calls kernels_{};
  Watch watch_{driver_, nullptr, "GPU 0", [] {}, std::chrono::hours(1)};
  Launcher launcher_{driver_, nullptr, "GPU 0", [] {}, watch_};
  std::atomic<std::uint32_t> asked_ = 0;
  std::uint64_t whole_ = 0;
  AccKernels asking_{kernels_, launcher_, nullptr, asked_, whole_};
  int told_ = 0;
  bool failed_ = false;
};

TEST_F(AccKernelsAhead, IsGivenOnceItIsAskedFor) {
  EXPECT_EQ(asked_, 0);
  ask();
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(told_, 0);
  answer();
  EXPECT_EQ(told_, 1);
  EXPECT_FALSE(failed_);
}

TEST_F(AccKernelsAhead, FailsWithADeviceThatFailsAfterTheQuestion) {
  ask();
  fail();
  EXPECT_EQ(told_, 1);
  EXPECT_TRUE(failed_);
  answer();  // all the same
  EXPECT_EQ(told_, 1);
}

TEST_F(AccKernelsAhead, FailsWithADeviceThatFailsBeforeTheQuestion) {
  fail();
  EXPECT_EQ(told_, 0);
  ask();
  EXPECT_EQ(told_, 1);
  EXPECT_TRUE(failed_);
  answer();
  EXPECT_EQ(told_, 1);
}

TEST_F(AccKernelsAhead, DoesNotFailAfterItWasGiven) {
  ask();
  answer();
  fail();
  EXPECT_EQ(told_, 1);
  EXPECT_FALSE(failed_);
}

}  // namespace
}  // namespace gtopk::gpu
