// Every transport: what ends a wait.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/transport/suite/every_transport.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;

class Waiting : public EveryTransport {};
INSTANTIATE_TEST_SUITE_P(Every, Waiting, testing::ValuesIn(networks()), name_of);

TEST_P(Waiting, AWakeFromAnotherThreadEndsIt) {
  begin(1);
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> called{false};
    std::thread waker([&] {
      called = true;
      end(0).wake();
    });
    const auto deadline = std::chrono::steady_clock::now() + kWatchdog;
    while (!called && std::chrono::steady_clock::now() < deadline) {
      end(0).wait(10s);
    }
    waker.join();
    ASSERT_TRUE(called);
  }
}

TEST_P(Waiting, AWakeBeforeItIsNotLost) {
  begin(1);
  while (network().move()) {
  }
  // Sleeps are capped at 50 ms; if the wake-ups failed, each of the twenty would take that long.
  // A busy machine may prolong a few.
  int long_ones = 0;
  for (int round = 0; round < 20; ++round) {
    const transport::TimePoint begin = network().now();
    end(0).wake();
    end(0).wait(10s);
    long_ones += network().now() - begin >= 45ms ? 1 : 0;
  }
  EXPECT_LE(long_ones, 10);
}

}  // namespace
}  // namespace gtopk::test
