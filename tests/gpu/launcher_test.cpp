// These tests show what a launcher does when something fails, over a driver of a few functions that
// runs nothing by itself.
#include "src/gpu/launcher.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gtopk::gpu {
namespace {

constexpr Driver::Result kFault = 700;  // CUDA_ERROR_ILLEGAL_ADDRESS
constexpr std::chrono::seconds kLong(20);

/// What was given to the stream, and not done.
std::vector<std::pair<Driver::HostFunction, void*>>& given() {
  static std::vector<std::pair<Driver::HostFunction, void*>> all;
  return all;
}

Driver driver_that_keeps() {
  given().clear();
  Driver driver;
  driver.launch_host_function = [](Driver::Stream, Driver::HostFunction call, void* argument) {
    given().emplace_back(call, argument);
    return 0;
  };
  driver.synchronize_stream = [](Driver::Stream) {
    for (const auto& [call, argument] : std::exchange(given(), {})) {
      call(argument);
    }
    return 0;
  };
  driver.query_stream = [](Driver::Stream) { return 0; };
  driver.exchange_capture_mode = [](int*) { return 0; };
  driver.error_name = [](Driver::Result, const char** name) {
    *name = "A_FAULT";
    return 0;
  };
  return driver;
}

/// "" for null.
std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) {
      std::rethrow_exception(error);
    }
  } catch (const std::exception& known) {
    return known.what();
  }
  return {};
}

/// Of one job: the error that it ends with, and its memory.
struct Fate {
  std::promise<std::string> ended;
  std::future<std::string> end = ended.get_future();
  std::shared_ptr<int> memory = std::make_shared<int>(0);
  std::weak_ptr<int> left = memory;

  Launcher::Job job(std::function<void(Driver::Stream)> launch = [](Driver::Stream) {}) {
    return {std::move(launch),
            [this](const std::exception_ptr& error) { ended.set_value(text_of(error)); },
            std::exchange(memory, nullptr)};
  }
};

/// A launcher, and what it needs.
struct Launching {
  explicit Launching(
      const Driver& driver, const std::function<void()>& make_current = [] {})
      : watch(
            driver, nullptr, "GPU 0", [] {}, std::chrono::milliseconds(1)),
        launcher(std::make_unique<Launcher>(driver, nullptr, "GPU 0", make_current, watch)) {}

  Watch watch;
  std::unique_ptr<Launcher> launcher;
};

/// Destroys it, on a thread; whether that ends.
bool goes(std::unique_ptr<Launcher> launcher) {
  std::promise<void> gone;
  std::future<void> is_gone = gone.get_future();
  std::thread([launcher = std::move(launcher), gone = std::move(gone)]() mutable {
    launcher.reset();
    gone.set_value();
  }).detach();
  return is_gone.wait_for(kLong) == std::future_status::ready;
}

TEST(Launcher, GoesOnceTheDeviceHasDoneAll) {
  const Driver driver = driver_that_keeps();
  Fate fate;
  Launching on(driver);
  on.launcher->run(fate.job());
  ASSERT_TRUE(goes(std::move(on.launcher)));
  EXPECT_EQ(fate.end.get(), "");
  EXPECT_TRUE(fate.left.expired());
}

TEST(Launcher, GoesWhenTheDeviceDoesNothingAnyMore) {
  Driver driver = driver_that_keeps();
  driver.synchronize_stream = [](Driver::Stream) { return kFault; };
  Fate fate;
  Launching on(driver);
  on.launcher->run(fate.job());
  ASSERT_TRUE(goes(std::move(on.launcher)));
  EXPECT_EQ(fate.end.get(), "GPU 0 has failed: A_FAULT (700)");
  EXPECT_EQ(given().size(), 1);
  EXPECT_FALSE(fate.left.expired()) << "something may still write there";
  static const auto* const kept = new auto(given());  // as a driver keeps what it never calls
  EXPECT_FALSE(kept->empty());
}

TEST(Launcher, TellsOfADeviceThatFails) {
  Driver driver = driver_that_keeps();
  driver.query_stream = [](Driver::Stream) { return kFault; };
  Fate fate;
  Launching on(driver);
  on.launcher->run(fate.job());
  ASSERT_EQ(fate.end.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(fate.end.get(), "GPU 0 has failed: A_FAULT (700)");
  EXPECT_FALSE(fate.left.expired()) << "something may still write there";
  ASSERT_TRUE(goes(std::move(on.launcher)));
  // A driver that calls back all the same finds that the end has been told.
  for (const auto& [call, argument] : std::exchange(given(), {})) {
    call(argument);
  }
}

TEST(Launcher, LetsMemoryGoIfNothingCouldBeEnqueued) {
  const Driver driver = driver_that_keeps();
  Fate fate;
  Launching on(driver);
  Launcher::Job job = fate.job();
  job.prepare = [] { throw std::runtime_error("no memory"); };
  on.launcher->run(std::move(job));
  ASSERT_TRUE(goes(std::move(on.launcher)));
  EXPECT_NE(fate.end.get(), "");
  EXPECT_TRUE(given().empty());
  EXPECT_TRUE(fate.left.expired());
}

TEST(Launcher, KeepsMemoryIfPartMayBeEnqueued) {
  const Driver driver = driver_that_keeps();
  Fate fate;
  Launching on(driver);
  on.launcher->run(fate.job([](Driver::Stream) { throw std::runtime_error("no kernel"); }));
  ASSERT_TRUE(goes(std::move(on.launcher)));
  EXPECT_NE(fate.end.get(), "");
  EXPECT_FALSE(fate.left.expired());
}

TEST(Launcher, TriesTheNextJobIfItsDeviceCouldNotBeMadeCurrent) {
  const Driver driver = driver_that_keeps();
  Fate first;
  Fate second;
  bool fails = true;
  Launching on(driver, [&] {
    if (std::exchange(fails, false)) {
      throw std::runtime_error("no context");
    }
  });
  on.launcher->run(first.job());
  on.launcher->run(second.job());
  ASSERT_TRUE(goes(std::move(on.launcher)));
  EXPECT_EQ(first.end.get(), "no context");
  EXPECT_TRUE(first.left.expired());
  EXPECT_EQ(second.end.get(), "");
}

}  // namespace
}  // namespace gtopk::gpu
