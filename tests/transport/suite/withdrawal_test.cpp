// Every transport: withdrawn receives, messages that nobody wants any more, and abandoned
// endpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "src/transport/base/tag.hpp"
#include "tests/transport/suite/every_transport.hpp"

namespace gtopk::test {
namespace {

using transport::any_source_mask;
using transport::collective_tag;

class Withdrawal : public EveryTransport {};
INSTANTIATE_TEST_SUITE_P(Every, Withdrawal, testing::ValuesIn(networks()), name_of);

TEST_P(Withdrawal, AWithdrawnReceiveTakesNoMessage) {
  begin(2);
  Message& withdrawn = recv(1, 0, 5, 8);
  end(1).cancel(withdrawn.request);
  ASSERT_TRUE(done({&withdrawn}));
  EXPECT_EQ(withdrawn.status(), Status::kCancelled);
  end(1).cancel(withdrawn.request);  // once more is harmless
  const Message& out = send(0, 1, 5, "message!");
  const Message& in = recv(1, 0, 5, 8);
  ASSERT_TRUE(all_done());
  EXPECT_EQ(in.bytes, out.bytes);
}

TEST_P(Withdrawal, OneOfSeveralReceivesLeavesTheOthersTheirOrder) {
  begin(2);
  const Message& first = recv(1, 0, 5, 8);
  Message& withdrawn = recv(1, 0, 5, 8);
  const Message& second = recv(1, 0, 5, 8);
  end(1).cancel(withdrawn.request);
  ASSERT_TRUE(done({&withdrawn}));
  send(0, 1, 5, "one");
  send(0, 1, 5, "two");
  ASSERT_TRUE(all_done());
  EXPECT_EQ(withdrawn.status(), Status::kCancelled);
  EXPECT_EQ(first.text(), "one");
  EXPECT_EQ(second.text(), "two");
}

TEST_P(Withdrawal, AReceiveThatIsMatchedEndsAsItWouldHave) {
  begin(2);
  for (const std::size_t size : {5UL, 70'000UL, 1UL << 20U}) {
    send(0, 1, 5, pattern(size, 1));
    ASSERT_TRUE(network().arrived(0, 1));
    Message& in = recv(1, 0, 5, size);
    end(1).cancel(in.request);
    ASSERT_TRUE(all_done());
    EXPECT_EQ(in.status(), Status::kOk) << size << " bytes";
    EXPECT_TRUE(in.bytes == pattern(size, 1));
  }
}

TEST_P(Withdrawal, Discard_DropsOnlyTagsInMaskAndReleasesSenders) {
  begin(2);
  constexpr std::uint32_t kSteps = 3;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    send(0, 1, collective_tag(1, 0, 10, step), pattern(std::size_t{100'000} * 5 * step, step));
  }
  send(0, 1, collective_tag(1, 0, 11, 0), "kept");
  ASSERT_TRUE(network().arrived(0, 1));
  EXPECT_EQ(end(1).discard(collective_tag(1, 0, 10, 0), any_source_mask()), kSteps);
  EXPECT_EQ(end(1).discard(collective_tag(1, 0, 10, 0), any_source_mask()), 0U);
  Message& gone = recv(1, 0, collective_tag(1, 0, 10, 0), 4);
  const Message& kept = recv(1, 0, collective_tag(1, 0, 11, 0), 4);
  ASSERT_TRUE(network().arrived(0, 1));
  EXPECT_TRUE(gone.pending());
  end(1).cancel(gone.request);
  ASSERT_TRUE(all_done()) << "the senders of what was dropped, too";
  EXPECT_EQ(kept.text(), "kept");
}

TEST_P(Withdrawal, SiftDropsWhatIsNotOursAndLeavesTheRestInItsOrder) {
  for (const std::size_t size : {5UL, 70'000UL, 300'000UL, 2UL << 20U}) {
    begin(2);
    constexpr Tag kOurs = collective_tag(1, 0, 10, 0);
    constexpr Tag kNot = collective_tag(2, 0, 10, 0);
    for (unsigned round = 0; round < 3; ++round) {
      send(0, 1, kOurs, pattern(size, 2 * round));
      send(0, 1, kNot, pattern(size, 9));
      ASSERT_TRUE(network().arrived(0, 1));
      std::vector<Tag> seen;
      EXPECT_EQ(end(1).sift([&](Tag tag) {
        seen.push_back(tag);
        return tag == kOurs;
      }),
                1U);
      EXPECT_NE(std::ranges::count(seen, kNot), 0);
      EXPECT_FALSE(end(1).lies_there(kNot));
      EXPECT_TRUE(end(1).lies_there(kOurs));
      send(0, 1, kOurs, pattern(size, 2 * round + 1));  // behind those already seen
    }
    for (unsigned i = 0; i < 6; ++i) {
      const Message& in = recv(1, 0, kOurs, size);
      ASSERT_TRUE(done({&in}));
      EXPECT_EQ(in.status(), Status::kOk);
      EXPECT_TRUE(in.bytes == pattern(size, i)) << size << " bytes, message " << i;
    }
    EXPECT_FALSE(end(1).lies_there(kOurs));
    ASSERT_TRUE(all_done()) << "the senders of what was dropped, too";
  }
}

TEST_P(Withdrawal, WhatSiftHasSeenIsStillDiscardedAndCutShort) {
  begin(2);
  for (const std::size_t size : {5UL, 300'000UL}) {
    for (std::uint32_t step = 0; step < 3; ++step) {
      send(0, 1, collective_tag(1, 0, 10, step), pattern(size, step));
    }
    ASSERT_TRUE(network().arrived(0, 1));
    EXPECT_EQ(end(1).sift([](Tag) { return true; }), 0U);
    const Message& cut = recv(1, 0, collective_tag(1, 0, 10, 0), size - 1);
    ASSERT_TRUE(done({&cut}));
    EXPECT_EQ(cut.status(), Status::kTruncated);
    EXPECT_EQ(cut.request.length(), size);
    EXPECT_EQ(end(1).discard(collective_tag(1, 0, 10, 0), any_source_mask()), 2U);
    EXPECT_FALSE(end(1).lies_there(collective_tag(1, 0, 10, 1)));
    ASSERT_TRUE(all_done());
  }
}

TEST_P(Withdrawal, UnreceivedAfterSift_DoesNotDelayClose) {
  begin(2);
  for (const std::size_t size : {5UL, 300'000UL}) {
    send(0, 1, 7, pattern(size, 1));
  }
  ASSERT_TRUE(network().arrived(0, 1));
  EXPECT_EQ(end(1).sift([](Tag) { return true; }), 0U);
  EXPECT_EQ(end(1).discard(0, 0), 2U);
  ASSERT_TRUE(all_done());
  send(0, 1, 7, "left behind");
  ASSERT_TRUE(network().arrived(0, 1));
  EXPECT_EQ(end(1).sift([](Tag) { return true; }), 0U);
  network().close(1);
}

TEST_P(Withdrawal, GiveUp_EndsOnlyThatPeersRequestsWithoutReport) {
  begin(3);
  recv(0, 1, 1, 1);
  send(1, 0, 1, "x");
  recv(0, 2, 1, 1);
  send(2, 0, 1, "x");
  ASSERT_TRUE(all_done());  // connected
  Message& waiting = recv(0, 1, 2, 8);
  Message& other = recv(0, 2, 2, 8);
  Message& large = send(0, 1, 3, std::string(std::size_t{32} << 20U, 'x'));
  const bool large_was_done = large.done();  // where everything is sent eagerly
  end(0).give_up(id(0, 1));
  ASSERT_TRUE(done({&waiting, &large}));
  EXPECT_EQ(waiting.status(), Status::kPeerFailed);
  EXPECT_EQ(large.status(), large_was_done ? Status::kOk : Status::kPeerFailed);
  EXPECT_FALSE(end(0).connected(id(0, 1)));
  EXPECT_EQ(send(0, 1, 4, "y").status(), Status::kPeerFailed);
  EXPECT_EQ(recv(0, 1, 4, 1).status(), Status::kPeerFailed);
  EXPECT_TRUE(end(0).take_failures().empty());
  EXPECT_TRUE(other.pending());
  send(2, 0, 2, "still on");
  ASSERT_TRUE(done({&other}));
  EXPECT_EQ(other.text(), "still on");
}

}  // namespace
}  // namespace gtopk::test
