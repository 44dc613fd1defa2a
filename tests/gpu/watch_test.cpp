// These tests show who is told that a device has failed, and when the driver is asked, over a
// driver of a few functions.
#include "src/gpu/watch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

namespace gtopk::gpu {
namespace {

using std::chrono::milliseconds;

constexpr Driver::Result kIllegalAddress = 700;
constexpr std::chrono::seconds kPatience(20);
constexpr const char* kText = "GPU 0 has failed: A_FAULT (700)";

/// Of the driver, in one test.
struct Asked {
  std::atomic<int> questions = 0;
  std::atomic<int> mode = 0;
};
Asked& asked() {
  static Asked all;
  return all;
}

Driver driver_that_answers(Driver::Result (*query)(Driver::Stream)) {
  asked().questions = 0;
  asked().mode = 0;
  Driver driver;
  driver.query_stream = query;
  driver.exchange_capture_mode = [](int* mode) {
    asked().mode = *mode;
    return 0;
  };
  driver.error_name = [](Driver::Result, const char** name) {
    *name = "A_FAULT";
    return 0;
  };
  return driver;
}

Driver failed_driver() {
  return driver_that_answers([](Driver::Stream) {
    ++asked().questions;
    return kIllegalAddress;
  });
}

/// What one who waits was told; telling it twice ends the program.
struct Told {
  std::promise<std::string> promise;
  std::future<std::string> why = promise.get_future();

  Watch::Failed failed() {
    return [this](const std::string& text) { promise.set_value(text); };
  }
  std::string text() {
    return why.wait_for(kPatience) == std::future_status::ready ? why.get() : "nothing";
  }
};

TEST(Watch, TellsAllWhoWaitOnce) {
  const Driver driver = failed_driver();
  Told first;
  Told second;
  Told later;
  Watch watch(driver, nullptr, "GPU 0", [] {}, milliseconds(1));
  EXPECT_FALSE(watch.has_failed());
  const Watch::Number number = watch.expect(first.failed());
  static_cast<void>(watch.expect([&](const std::string& why) {
    EXPECT_TRUE(watch.has_failed());
    second.promise.set_value(why);
  }));
  EXPECT_EQ(first.text(), kText);
  EXPECT_EQ(second.text(), kText);
  static_cast<void>(watch.expect(later.failed()));
  EXPECT_EQ(later.text(), kText);
  watch.forget(number);
}

TEST(Watch, DoesNotTellWhoIsForgotten) {
  const Driver driver = failed_driver();
  Told told;
  {
    Watch watch(driver, nullptr, "GPU 0", [] {}, milliseconds(20));
    watch.forget(watch.expect([](const std::string&) { FAIL(); }));
    static_cast<void>(watch.expect(told.failed()));
    watch.forget(watch.expect([](const std::string&) { FAIL(); }));
    EXPECT_EQ(told.text(), kText);
  }
}

TEST(Watch, AsksNothingUnlessSomebodyWaitsForLong) {
  const Driver driver = failed_driver();
  {
    Watch watch(driver, nullptr, "GPU 0", [] {}, std::chrono::hours(1));
    for (int i = 0; i < 1000; ++i) {
      watch.forget(watch.expect([](const std::string&) { FAIL(); }));
    }
    static_cast<void>(watch.expect([](const std::string&) { FAIL(); }));
  }
  EXPECT_EQ(asked().questions, 0);
}

TEST(Watch, BusyOrCapturingDevice_IsNotReportedFailed) {
  const Driver driver = driver_that_answers([](Driver::Stream) -> Driver::Result {
    static constexpr std::array kAnswers{600, 0, 4, 900, 906, 908, kIllegalAddress};
    return kAnswers.at(static_cast<std::size_t>(asked().questions++));
  });
  Told told;
  Watch watch(driver, nullptr, "GPU 0", [] {}, milliseconds(1));
  static_cast<void>(watch.expect(told.failed()));
  EXPECT_EQ(told.text(), kText);
  EXPECT_EQ(asked().questions, 7);
}

TEST(Watch, AsksOnAThreadThatHasTheDeviceAndDoesNotBreakCaptures) {
  static std::atomic<std::thread::id> entered;
  const Driver driver = driver_that_answers([](Driver::Stream) -> Driver::Result {
    EXPECT_EQ(entered, std::this_thread::get_id());
    EXPECT_EQ(asked().mode, 2) << "CU_STREAM_CAPTURE_MODE_RELAXED";
    return kIllegalAddress;
  });
  Told told;
  const auto make_current = [] { entered = std::this_thread::get_id(); };
  Watch watch(driver, nullptr, "GPU 0", make_current, milliseconds(1));
  static_cast<void>(watch.expect(told.failed()));
  EXPECT_EQ(told.text(), kText);
}

TEST(Watch, TakesADeviceForFailedThatCannotBeMadeCurrent) {
  const Driver driver = failed_driver();
  Told told;
  const auto make_current = [] { throw std::runtime_error("no context"); };
  Watch watch(driver, nullptr, "GPU 0", make_current, milliseconds(1));
  static_cast<void>(watch.expect(told.failed()));
  EXPECT_EQ(told.text(), "GPU 0 has failed: no context");
  EXPECT_EQ(asked().questions, 0);
}

}  // namespace
}  // namespace gtopk::gpu
