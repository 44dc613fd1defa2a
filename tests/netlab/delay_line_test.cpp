// The lab's delay line: when frames come out, which are lost, and that both can be replayed.
#include "delay_line.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace netlab {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> frame(std::uint8_t first, std::size_t size = 64) {
  std::vector<std::byte> bytes(size);
  bytes[0] = std::byte{first};
  return bytes;
}

std::vector<std::uint8_t> order_of(DelayLine& line, Time by) {
  std::vector<std::uint8_t> order;
  while (const std::optional<Frame> popped = line.pop(by)) {
    order.push_back(std::to_integer<std::uint8_t>(popped->bytes[0]));
  }
  return order;
}

std::vector<bool> losses(std::uint64_t seed, std::size_t port, std::size_t source, int frames) {
  Impairment impairment{.loss = 0.01, .seed = seed};
  DelayLine line(impairment, port, 3);
  std::vector<bool> lost;
  for (int i = 0; i < frames; ++i) {
    lost.push_back(line.push(source, Time{i}, frame(0)) == Fate::kLost);
    (void)order_of(line, Time{i});
  }
  return lost;
}

TEST(DelayLine, AFrameComesOutAfterTheDelayAndNotBefore) {
  DelayLine line({.delay = 25ms}, 0, 2);
  ASSERT_EQ(line.push(1, 10ms, frame(7)), Fate::kWaits);
  EXPECT_EQ(line.next_due(), Time{35ms});
  EXPECT_FALSE(line.pop(Time{35ms} - 1ns));
  EXPECT_EQ(order_of(line, 35ms), std::vector<std::uint8_t>{7});
  EXPECT_FALSE(line.next_due());
}

TEST(DelayLine, JitterStaysWithinItsBoundsAndKeepsTheOrder) {
  DelayLine line({.delay = 25ms, .jitter = 5ms}, 0, 2);
  Time last{};
  bool varies = false;
  for (int i = 0; i < 1000; ++i) {
    const Time arrival = i * 100us;
    ASSERT_EQ(line.push(1, arrival, frame(0)), Fate::kWaits);
    const Time due = line.pop(1h)->due;
    EXPECT_GE(due, arrival + 20ms);
    EXPECT_LE(due, arrival + 30ms);
    EXPECT_GE(due, last);
    varies = varies || due - arrival != Time{25ms};
    last = due;
  }
  EXPECT_TRUE(varies);
}

TEST(DelayLine, FramesOvertakeOnlyIfAskedTo) {
  std::vector<std::uint8_t> sent(200);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<std::uint8_t>(i);
  }
  for (const bool reorder : {false, true}) {
    DelayLine line({.delay = 25ms, .jitter = 5ms, .reorder = reorder}, 0, 2);
    for (const std::uint8_t number : sent) {
      ASSERT_EQ(line.push(1, number * 10us, frame(number)), Fate::kWaits);
    }
    EXPECT_EQ(order_of(line, 1h) == sent, !reorder);
  }
}

TEST(DelayLine, FramesDueAtTheSameTimeKeepTheirOrder) {
  DelayLine line({.delay = 1ms}, 0, 2);
  for (std::uint8_t i = 0; i < 50; ++i) {
    ASSERT_EQ(line.push(i % 2, 0ms, frame(i)), Fate::kWaits);
  }
  const std::vector<std::uint8_t> order = order_of(line, 1ms);
  ASSERT_EQ(order.size(), 50U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST(DelayLine, AsManyAreLostAsAskedAndTheSameAgain) {
  const std::vector<bool> lost = losses(1, 0, 1, 100'000);
  // Five standard deviations of a binomial distribution: 1000 ± 157.
  EXPECT_NEAR(static_cast<double>(std::ranges::count(lost, true)), 1000, 157);
  EXPECT_EQ(losses(1, 0, 1, 100'000), lost);
  EXPECT_NE(losses(2, 0, 1, 100'000), lost);
  EXPECT_NE(losses((std::uint64_t{1} << 40) + 1, 0, 1, 100'000), lost);
  EXPECT_NE(losses(1, 2, 1, 100'000), lost);
  EXPECT_NE(losses(1, 0, 2, 100'000), lost);
}

TEST(DelayLine, LossesBetweenTwoPortsDoNotDependOnOthersTraffic) {
  const std::vector<bool> alone = losses(1, 0, 1, 10'000);
  DelayLine line({.loss = 0.01}, 0, 3);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    (void)line.push(2, Time{i}, frame(0));
    EXPECT_EQ(line.push(1, Time{i}, frame(0)) == Fate::kLost, alone[i]);
    (void)order_of(line, 1h);
  }
}

TEST(DelayLine, MoreThanMayWaitOverflowsUntilSomeHaveLeft) {
  DelayLine line({.delay = 1ms, .limit_bytes = 200}, 0, 2);
  EXPECT_EQ(line.push(1, 0ms, frame(1, 100)), Fate::kWaits);
  EXPECT_EQ(line.push(1, 0ms, frame(2, 100)), Fate::kWaits);
  EXPECT_EQ(line.push(1, 0ms, frame(3, 1)), Fate::kOverflowed);
  EXPECT_TRUE(line.pop(1ms));
  EXPECT_EQ(line.push(1, 1ms, frame(4, 100)), Fate::kWaits);
}

TEST(DelayLine, WhatPassesIsNeitherDelayedNorLost) {
  DelayLine line({.delay = 25ms, .loss = 0.999}, 0, 2);
  for (std::uint8_t i = 0; i < 100; ++i) {
    line.pass(1ms, frame(i));
  }
  EXPECT_EQ(order_of(line, 1ms).size(), 100U);
}

}  // namespace
}  // namespace netlab
