// Transport, inproc: what tests may rely on beyond the suite for every transport: when requests
// end, eager and rendezvous, and what is counted.
#include <gtest/gtest.h>

#include <string>

#include "gtopk/error.hpp"
#include "tests/transport/inproc/ranks.hpp"

namespace gtopk::transport::inproc {
namespace {

class EitherWay : public testing::TestWithParam<std::size_t> {
 protected:
  Ranks ranks_{3, {.eager_below = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Protocols, EitherWay, testing::Values(kAllEager, kNoneEager),
                         [](const auto& name) {
                           return name.param == kAllEager ? "eager" : "rendezvous";
                         });

TEST_P(EitherWay, TrafficIsCountedExactlyAndByKind) {
  ranks_.send(0, 1, collective_tag(0, 0, 0, 0), "12345");
  ranks_.send(0, 1, point_to_point_tag(0, 0, 9), "123");
  ranks_.recv(1, 0, collective_tag(0, 0, 0, 0));
  ranks_.settle();
  const Traffic& sent = ranks_.fabric.counters(0).of(TagKind::kCollective);
  EXPECT_EQ(sent.messages_sent, 1U);
  EXPECT_EQ(sent.bytes_sent, 5U);
  EXPECT_EQ(sent.messages_received, 0U);
  const Traffic& received = ranks_.fabric.counters(1).of(TagKind::kCollective);
  EXPECT_EQ(received.messages_received, 1U);
  EXPECT_EQ(received.bytes_received, 5U);
  EXPECT_EQ(ranks_.fabric.counters(0).of(TagKind::kPointToPoint).bytes_sent, 3U);
  EXPECT_EQ(ranks_.fabric.counters(1).of(TagKind::kPointToPoint).messages_received, 0U);
  EXPECT_EQ(ranks_.fabric.counters(1).of(TagKind::kControl).messages_sent, 0U);
}

TEST_P(EitherWay, DiscardedMessagesAreCounted) {
  ranks_.send(0, 1, 5, "one");
  ranks_.send(0, 1, 5, "two");
  ranks_.settle();
  EXPECT_EQ(ranks_.port(1).discard(5, ~Tag{0}), 2U);
  ranks_.settle();
  EXPECT_EQ(ranks_.fabric.counters(1).discarded, 2U);
}

TEST_P(EitherWay, AWithdrawnReceiveEndsInProgressAndNotInsideTheCall) {
  Message& withdrawn = ranks_.recv(1, 0, 5);
  ranks_.port(1).cancel(withdrawn.request);
  EXPECT_TRUE(withdrawn.pending());
  ranks_.settle();
  EXPECT_EQ(withdrawn.status(), Status::kCancelled);
}

TEST_P(EitherWay, MessageFromWrongSource_IsReceivedAndCounted) {
  Message& received = ranks_.recv(1, 0, 5);
  ranks_.send(2, 1, 5, "from 2");
  ranks_.settle();
  EXPECT_EQ(received.text(), "from 2") << "networks match by tag alone";
  EXPECT_EQ(ranks_.fabric.counters(1).wrong_source, 1U);
}

TEST(Eager, AReceiveForAMessageThatIsThereCompletesAtOnce) {
  Ranks ranks(2, {.eager_below = kAllEager});
  ranks.send(0, 1, 5, "hello");
  ranks.settle();
  EXPECT_EQ(ranks.recv(1, 0, 5).status(), Status::kOk);
}

TEST(Rendezvous, ASendStaysPendingUntilItIsMatched) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  Message& sent = ranks.send(0, 1, 5, "hello");
  ranks.settle_all();
  EXPECT_TRUE(sent.pending());
  EXPECT_TRUE(ranks.fabric.quiet());
  ranks.recv(1, 0, 5);
  ranks.settle();
  EXPECT_EQ(sent.status(), Status::kOk);
}

TEST(Rendezvous, ABufferReusedTooEarlyIsSeenByTheReceiver) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  Message& sent = ranks.send(0, 1, 5, "hello");
  sent.bytes.replace(0, 5, "XXXXX");
  Message& received = ranks.recv(1, 0, 5);
  ranks.settle();
  EXPECT_EQ(received.text(), "XXXXX");
}

TEST(Rendezvous, TheThresholdDividesMessagesBySize) {
  Ranks ranks(2, {.eager_below = 4});
  EXPECT_FALSE(ranks.send(0, 1, 5, "123").pending());
  EXPECT_TRUE(ranks.send(0, 1, 6, "1234").pending());
}

TEST(Address, WhatIsNotOfThisFabricIsRefused) {
  Fabric fabric(2, {.seed = 1});
  Fabric other(3, {.seed = 2});
  for (const std::string& blob : {other.port(0).address(), other.port(2).address()}) {
    EXPECT_THROW(fabric.port(0).add_peer(blob), Error) << blob;
  }
}

}  // namespace
}  // namespace gtopk::transport::inproc
