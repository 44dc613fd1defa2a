// Transport, inproc: what a message does when nothing goes wrong, eager and rendezvous.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "gtopk/error.hpp"
#include "transport/inproc/ranks.hpp"

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

TEST_P(EitherWay, APostedReceiveGetsTheMessage) {
  Call& received = ranks_.recv(1, 0, 5);
  Call& sent = ranks_.send(0, 1, 5, "hello");
  ranks_.settle();
  EXPECT_EQ(received.status(), Status::kOk);
  EXPECT_EQ(received.text(), "hello");
  EXPECT_EQ(sent.status(), Status::kOk);
}

TEST_P(EitherWay, AMessageWaitsForItsReceive) {
  ranks_.send(0, 1, 5, "hello");
  ranks_.settle();
  Call& received = ranks_.recv(1, 0, 5);
  ranks_.settle();
  EXPECT_EQ(received.text(), "hello");
}

TEST_P(EitherWay, AMessageWithoutBytesArrives) {
  Call& received = ranks_.recv(1, 0, 5, 0);
  ranks_.send(0, 1, 5, "");
  ranks_.settle();
  EXPECT_EQ(received.status(), Status::kOk);
  EXPECT_EQ(received.request.length(), 0U);
}

TEST_P(EitherWay, ARankMaySendToItself) {
  Call& received = ranks_.recv(2, 2, 5);
  ranks_.send(2, 2, 5, "me");
  ranks_.settle();
  EXPECT_EQ(received.text(), "me");
}

TEST_P(EitherWay, OnlyTheSameTagMatches) {
  Call& received = ranks_.recv(1, 0, 5);
  ranks_.send(0, 1, 6, "six");
  ranks_.settle();
  EXPECT_TRUE(received.pending());
  ranks_.send(0, 1, 5, "five");
  ranks_.settle();
  EXPECT_EQ(received.text(), "five");
}

TEST_P(EitherWay, AMessageLongerThanTheRoomIsTruncatedAndTellsItsLength) {
  Call& received = ranks_.recv(1, 0, 5, 3);
  Call& sent = ranks_.send(0, 1, 5, "hello");
  ranks_.settle();
  EXPECT_EQ(received.status(), Status::kTruncated);
  EXPECT_EQ(received.request.length(), 5U);
  EXPECT_EQ(sent.status(), Status::kOk) << "the sender never learns";
}

TEST_P(EitherWay, MessagesOfOneSenderAndTagKeepTheirOrder) {
  std::array<Call*, 10> received{};
  for (std::size_t i = 0; i < received.size(); ++i) ranks_.send(0, 1, 5, std::to_string(i));
  for (Call*& call : received) call = &ranks_.recv(1, 0, 5);
  ranks_.settle();
  for (std::size_t i = 0; i < received.size(); ++i) {
    EXPECT_EQ(received.at(i)->text(), std::to_string(i));
  }
}

TEST_P(EitherWay, AWithdrawnReceiveEndsLaterAndTakesNoMessage) {
  Call& withdrawn = ranks_.recv(1, 0, 5);
  ranks_.port(1).cancel(withdrawn.request);
  EXPECT_TRUE(withdrawn.pending());
  ranks_.send(0, 1, 5, "hello");
  ranks_.settle();
  EXPECT_EQ(withdrawn.status(), Status::kCancelled);
  Call& received = ranks_.recv(1, 0, 5);
  ranks_.settle();
  EXPECT_EQ(received.text(), "hello");
}

TEST_P(EitherWay, ACompletedSendSaysItsLength) {
  const Call& sent = ranks_.send(0, 1, 5, "hello");
  const Call& received = ranks_.recv(1, 0, 5);
  ranks_.settle();
  EXPECT_EQ(sent.status(), Status::kOk);
  EXPECT_EQ(sent.request.length(), 5U);
  EXPECT_EQ(received.request.length(), 5U);
}

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

constexpr Tag kOneCollective = ~Tag{0xffff};  // any step and chunk

TEST_P(EitherWay, DiscardingTakesWhatArrivedAndFitsAndLetsItsSenderGo) {
  Call& one = ranks_.send(0, 1, collective_tag(0, 0, 7, 1), "one");
  Call& two = ranks_.send(0, 1, collective_tag(0, 0, 7, 2), "two");
  ranks_.send(0, 1, collective_tag(0, 0, 8, 1), "other");
  ranks_.settle();
  EXPECT_EQ(ranks_.port(1).discard(collective_tag(0, 0, 7, 0), kOneCollective), 2U);
  ranks_.settle();
  EXPECT_EQ(one.status(), Status::kOk);
  EXPECT_EQ(two.status(), Status::kOk);
  Call& kept = ranks_.recv(1, 0, collective_tag(0, 0, 8, 1));
  Call& gone = ranks_.recv(1, 0, collective_tag(0, 0, 7, 1));
  ranks_.settle();
  EXPECT_EQ(kept.text(), "other");
  EXPECT_TRUE(gone.pending());
  EXPECT_EQ(ranks_.fabric.counters(1).discarded, 2U);
}

TEST_P(EitherWay, AMessageFromAnotherPeerThanTheReceiveNamesIsCounted) {
  Call& received = ranks_.recv(1, 0, 5);
  ranks_.send(2, 1, 5, "from 2");
  ranks_.settle();
  EXPECT_EQ(received.text(), "from 2") << "networks match by tag alone";
  EXPECT_EQ(ranks_.fabric.counters(1).wrong_source, 1U);
}

TEST(Eager, TheBufferIsFreeWhenSendReturns) {
  Ranks ranks(2, {.eager_below = kAllEager});
  Call& sent = ranks.send(0, 1, 5, "hello");
  EXPECT_EQ(sent.status(), Status::kOk);
  sent.bytes = "XXXXX";
  Call& received = ranks.recv(1, 0, 5);
  ranks.settle();
  EXPECT_EQ(received.text(), "hello");
}

TEST(Eager, AReceiveForAMessageThatIsThereCompletesAtOnce) {
  Ranks ranks(2, {.eager_below = kAllEager});
  ranks.send(0, 1, 5, "hello");
  ranks.settle();
  EXPECT_EQ(ranks.recv(1, 0, 5).status(), Status::kOk);
}

TEST(Rendezvous, ASendStaysPendingUntilItIsMatched) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  Call& sent = ranks.send(0, 1, 5, "hello");
  ranks.settle_all();
  EXPECT_TRUE(sent.pending());
  EXPECT_TRUE(ranks.fabric.quiet());
  ranks.recv(1, 0, 5);
  ranks.settle();
  EXPECT_EQ(sent.status(), Status::kOk);
}

TEST(Rendezvous, ABufferReusedTooEarlyIsSeenByTheReceiver) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  Call& sent = ranks.send(0, 1, 5, "hello");
  sent.bytes.replace(0, 5, "XXXXX");
  Call& received = ranks.recv(1, 0, 5);
  ranks.settle();
  EXPECT_EQ(received.text(), "XXXXX");
}

TEST(Rendezvous, AReceiveThatIsMatchedCannotBeWithdrawn) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  ranks.send(0, 1, 5, "hello");
  ranks.settle();
  Call& received = ranks.recv(1, 0, 5);  // matched: the bytes are still to come
  ranks.port(1).cancel(received.request);
  ranks.settle();
  EXPECT_EQ(received.status(), Status::kOk);
}

TEST(Rendezvous, TheThresholdDividesMessagesBySize) {
  Ranks ranks(2, {.eager_below = 4});
  EXPECT_FALSE(ranks.send(0, 1, 5, "123").pending());
  EXPECT_TRUE(ranks.send(0, 1, 6, "1234").pending());
}

TEST(Address, APeerKeepsItsIdAndTellsWhoItIs) {
  Fabric fabric(3);
  Transport& port = fabric.port(0);
  const PeerId two = port.add_peer(fabric.port(2).address());
  const PeerId self = port.add_peer(port.address());
  EXPECT_NE(two, self);
  EXPECT_EQ(port.add_peer(fabric.port(2).address()), two);
  EXPECT_EQ(port.peer(two).host, "node2");
  EXPECT_EQ(port.peer(two).identity, fabric.port(2).self().identity);
  EXPECT_EQ(port.peer(self).process, port.self().process);
}

TEST(Address, WhatIsNotOfThisFabricIsRefused) {
  Fabric fabric(2, {.seed = 1});
  Fabric other(3, {.seed = 2});
  for (const std::string& blob : {std::string(), std::string("tcp:1"), other.port(0).address(),
                                  other.port(2).address(), fabric.port(0).address() + "0"}) {
    EXPECT_THROW(fabric.port(0).add_peer(blob), Error) << blob;
  }
}

}  // namespace
}  // namespace gtopk::transport::inproc
