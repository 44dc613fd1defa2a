// Transport, inproc: damaged messages, and processes that die or stop.
#include <gtest/gtest.h>

#include "tests/transport/inproc/ranks.hpp"

namespace gtopk::transport::inproc {
namespace {

using std::chrono::milliseconds;

class SpoiltMessage : public testing::TestWithParam<std::size_t> {
 protected:
  /// Rank 0 sends "hello" to rank 1 with this fault.
  Message& receive_with(Fault fault) {
    ranks_.fabric.set_faults([fault](const Sent&) { return fault; });
    Message& received = ranks_.recv(1, 0, 5, 8);
    ranks_.send(0, 1, 5, "hello");
    ranks_.settle_all();
    return received;
  }
  Ranks ranks_{2, {.eager_below = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Protocols, SpoiltMessage, testing::Values(kAllEager, kNoneEager),
                         [](const auto& name) {
                           return name.param == kAllEager ? "eager" : "rendezvous";
                         });

TEST_P(SpoiltMessage, ADroppedOneNeverArrives) {
  EXPECT_TRUE(receive_with({.drop = true}).pending());
}

TEST_P(SpoiltMessage, ARefusedOneEndsAtOnceAtItsSender) {
  EXPECT_TRUE(receive_with({.refuse = true}).pending());
  EXPECT_EQ(ranks_.send(0, 1, 5, "hello").status(), Status::kPeerFailed);
}

TEST_P(SpoiltMessage, OneRefusedLaterIsPendingUntilThen) {
  EXPECT_TRUE(receive_with({.refuse = true, .delay = milliseconds(20)}).pending());
  const Message& sent = ranks_.send(0, 1, 5, "hello");
  ranks_.settle();
  EXPECT_TRUE(sent.request.pending());
  ranks_.fabric.advance(milliseconds(20));
  ranks_.settle();
  EXPECT_EQ(sent.status(), Status::kPeerFailed);
}

TEST_P(SpoiltMessage, AShortenedOneArrivesShort) {
  EXPECT_EQ(receive_with({.length = 2}).text(), "he");
}

TEST_P(SpoiltMessage, ALengthenedOneIsPadded) {
  EXPECT_EQ(receive_with({.length = 7}).text(), "hello\xA5\xA5");
}

TEST_P(SpoiltMessage, OneLengthenedBeyondTheBufferIsTruncated) {
  const Message& received = receive_with({.length = 9});
  EXPECT_EQ(received.status(), Status::kTruncated);
  EXPECT_EQ(received.request.length(), 9U);
}

TEST_P(SpoiltMessage, AFlippedByteArrivesFlipped) {
  EXPECT_EQ(receive_with({.flip = 1}).text(), std::string("h\x9Allo"));
}

TEST_P(SpoiltMessage, ARuleSeesRanksTagAndSize) {
  ranks_.fabric.set_faults([](const Sent& sent) {
    EXPECT_EQ(sent.source, 0U);
    EXPECT_EQ(sent.destination, 1U);
    EXPECT_EQ(sent.tag, 5U);
    EXPECT_EQ(sent.bytes, 5U);
    return Fault{};
  });
  ranks_.send(0, 1, 5, "hello");
}

TEST(Kill, ReceivesFromTheRankEndAndItIsReportedOnceAfterTheDelay) {
  Ranks ranks(3, {.failure_delay = milliseconds(20)});
  Message& lost = ranks.recv(1, 0, 5);
  Message& other = ranks.recv(1, 2, 6);
  ranks.settle();
  ranks.fabric.kill(0);
  ranks.settle();
  EXPECT_TRUE(lost.pending());
  EXPECT_TRUE(ranks.port(1).take_failures().empty());
  ranks.fabric.advance(milliseconds(20));
  ranks.settle();
  EXPECT_EQ(lost.status(), Status::kPeerFailed);
  const std::vector<PeerFailure> failures = ranks.port(1).take_failures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].peer, ranks.id(1, 0));
  EXPECT_TRUE(ranks.port(1).take_failures().empty());
  EXPECT_TRUE(other.pending());
  EXPECT_EQ(ranks.send(1, 0, 7, "late").status(), Status::kPeerFailed);
  EXPECT_EQ(ranks.recv(1, 0, 7).status(), Status::kPeerFailed);
  EXPECT_FALSE(ranks.port(1).connected(ranks.id(1, 0)));
}

TEST(Kill, RendezvousSend_FailsAndEagerSendSucceeds) {
  Ranks ranks(2, {.eager_below = 4});
  Message& small = ranks.send(1, 0, 5, "123");
  Message& large = ranks.send(1, 0, 6, "1234");
  ranks.fabric.kill(0);
  EXPECT_EQ(small.status(), Status::kOk);
  EXPECT_TRUE(large.pending());
  ranks.settle_all();
  EXPECT_EQ(large.status(), Status::kPeerFailed);
}

TEST(Kill, AMessageAnnouncedByTheRankNeverComes) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  Message& received = ranks.recv(1, 0, 5);
  ranks.send(0, 1, 5, "hello");
  ASSERT_TRUE(ranks.fabric.deliver_one());
  ranks.port(1).progress();  // matched; rank 0 is asked for the payload
  ranks.fabric.kill(0);
  ranks.settle_all();
  EXPECT_EQ(received.status(), Status::kPeerFailed);
}

TEST(Kill, WhatTheRankSentBeforeMayArriveOrBeLost) {
  int arrived = 0;
  constexpr int kRuns = 40;
  for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
    Ranks ranks(2, {.seed = seed, .failure_delay = milliseconds(0)});
    Message& received = ranks.recv(1, 0, 5);
    ranks.send(0, 1, 5, "hello");
    ranks.fabric.kill(0);
    ranks.settle_all();
    ASSERT_FALSE(received.pending());
    arrived += received.status() == Status::kOk ? 1 : 0;
  }
  EXPECT_GT(arrived, 0);
  EXPECT_LT(arrived, kRuns);
}

TEST(Kill, ASilentDeathIsNoticedByNobody) {
  Ranks ranks(2);
  Message& received = ranks.recv(1, 0, 5);
  ranks.fabric.kill(0, Death::kSilent);
  ranks.settle_all();
  ranks.fabric.advance(std::chrono::hours(1));
  ranks.settle_all();
  EXPECT_TRUE(received.pending());
  EXPECT_TRUE(ranks.port(1).take_failures().empty());
  EXPECT_TRUE(ranks.port(1).connected(ranks.id(1, 0)));
}

TEST(Kill, OnlyRanksWithAnEndpointNotice) {
  Ranks ranks(3);
  Message& quiet = ranks.recv(1, 0, 6);  // receiving makes rank 1 an endpoint
  ranks.fabric.kill(0);
  ranks.settle_all();
  EXPECT_EQ(quiet.status(), Status::kPeerFailed);
  EXPECT_EQ(ranks.port(1).take_failures().size(), 1U);
  EXPECT_TRUE(ranks.port(2).take_failures().empty());
  Message& late = ranks.recv(2, 0, 7);  // and here rank 2 tries to
  ranks.settle_all();
  EXPECT_EQ(late.status(), Status::kPeerFailed);
  EXPECT_EQ(ranks.port(2).take_failures().size(), 1U);
}

TEST(Kill, AReceiveThatDoesNotConnectIsNotTold) {
  Ranks ranks(2);
  Message call(std::string(8, '.'));
  call.request.connects = false;
  call.recv(ranks.port(1), ranks.id(1, 0), 5);
  EXPECT_FALSE(ranks.port(1).connected(ranks.id(1, 0)));
  ranks.fabric.kill(0);
  ranks.settle_all();
  EXPECT_TRUE(call.pending());
  ranks.send(1, 0, 6, "x");
  EXPECT_TRUE(ranks.port(1).connected(ranks.id(1, 0)));
  ranks.settle_all();
  EXPECT_EQ(call.status(), Status::kPeerFailed) << "an endpoint made by another request ends it";
}

TEST(Kill, TheRanksOwnRequestsEndSoThatItsOwnerCanBeTakenDown) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  Message& received = ranks.recv(0, 1, 5);
  Message& sent = ranks.send(0, 1, 6, "hello");
  ranks.settle();
  ranks.fabric.kill(0);
  EXPECT_TRUE(received.pending());
  ranks.port(0).progress();
  EXPECT_EQ(received.status(), Status::kPeerFailed);
  EXPECT_EQ(sent.status(), Status::kPeerFailed);
  EXPECT_EQ(ranks.recv(0, 1, 7).status(), Status::kPeerFailed);
  ranks.port(0).close(milliseconds(1));
}

TEST(Freeze, NothingReachesTheRankAndNobodyIsToldUntilItThaws) {
  Ranks ranks(2);
  Message& received = ranks.recv(1, 0, 5);
  ranks.fabric.freeze(1);
  ranks.send(0, 1, 5, "hello");
  ranks.settle_all();
  ranks.fabric.advance(std::chrono::hours(1));
  EXPECT_FALSE(ranks.fabric.deliver_one());
  EXPECT_FALSE(ranks.port(1).progress());
  EXPECT_TRUE(received.pending());
  EXPECT_TRUE(ranks.port(0).take_failures().empty());
  ranks.fabric.thaw(1);
  ranks.settle();
  EXPECT_EQ(received.text(), "hello");
}

TEST(Freeze, WhatTheRankSentBeforeStillArrivesWhenItWasCopied) {
  Ranks ranks(2, {.eager_below = 4});
  Message& small = ranks.recv(1, 0, 5);
  Message& large = ranks.recv(1, 0, 6);
  ranks.send(0, 1, 5, "123");
  ranks.send(0, 1, 6, "1234");
  ranks.fabric.freeze(0);
  ranks.settle_all();
  EXPECT_EQ(small.text(), "123");
  EXPECT_TRUE(large.pending()) << "the rank must answer before its bytes go";
  ranks.fabric.thaw(0);
  ranks.settle();
  EXPECT_EQ(large.text(), "1234");
}

}  // namespace
}  // namespace gtopk::transport::inproc
