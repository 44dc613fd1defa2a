// Transport, inproc: endpoints given up and ports that close.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "transport/inproc/ranks.hpp"

namespace gtopk::transport::inproc {
namespace {

using std::chrono::milliseconds;

TEST(GiveUp, ItsRequestsEndWithoutAReportAndTheOtherSideGetsOne) {
  Ranks ranks(3, {.eager_below = kNoneEager});
  Call& received = ranks.recv(1, 0, 5);
  Call& sent = ranks.send(1, 0, 6, "hello");
  Call& other = ranks.recv(1, 2, 7);
  Call& there = ranks.recv(0, 1, 8);
  ranks.settle();
  ranks.port(1).give_up(ranks.id(1, 0));
  EXPECT_TRUE(received.pending()) << "nothing completes inside the call";
  ranks.settle_all();
  EXPECT_EQ(received.status(), Status::kPeerFailed);
  EXPECT_EQ(sent.status(), Status::kPeerFailed);
  EXPECT_TRUE(other.pending());
  EXPECT_TRUE(ranks.port(1).take_failures().empty());
  EXPECT_EQ(there.status(), Status::kPeerFailed);
  EXPECT_EQ(ranks.port(0).take_failures().size(), 1U);
  EXPECT_EQ(ranks.send(1, 0, 9, "x").status(), Status::kPeerFailed);
}

TEST(GiveUp, AFrozenPeerCanBeGivenUp) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  ranks.fabric.freeze(0);
  Call& sent = ranks.send(1, 0, 5, "hello");
  ranks.port(1).give_up(ranks.id(1, 0));
  ranks.settle();
  EXPECT_EQ(sent.status(), Status::kPeerFailed);
  ranks.port(1).close(milliseconds(1));
}

TEST(Close, PeersHearOfItAfterTheLastMessage) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Ranks ranks(2, {.seed = seed});
    Call& first = ranks.recv(1, 0, 5);
    Call& second = ranks.recv(1, 0, 6);
    Call& never = ranks.recv(1, 0, 7);
    ranks.send(0, 1, 5, "one");
    ranks.send(0, 1, 6, "two");
    ranks.port(0).close(milliseconds(1));
    ranks.settle_all();
    EXPECT_EQ(first.text(), "one");
    EXPECT_EQ(second.text(), "two");
    EXPECT_EQ(never.status(), Status::kPeerFailed);
    EXPECT_EQ(ranks.port(1).take_failures().size(), 1U);
  }
}

TEST(Close, AnExpectedDepartureIsNotReportedAndStillEndsRequests) {
  Ranks ranks(2);
  Call& never = ranks.recv(1, 0, 7);
  ranks.port(1).expect_departure(ranks.id(1, 0));
  ranks.port(0).close(milliseconds(1));
  ranks.settle_all();
  EXPECT_EQ(never.status(), Status::kPeerFailed);
  EXPECT_TRUE(ranks.port(1).take_failures().empty());
}

TEST(Close, MessagesThatNobodyReceivedAreNamed) {
  for (const std::size_t eager_below : {kAllEager, kNoneEager}) {
    Ranks ranks(2, {.eager_below = eager_below});
    ranks.send(0, 1, tag_of(0, 3), "lost");
    ASSERT_TRUE(ranks.fabric.deliver_one());
    ranks.port(1).close(milliseconds(1));
    EXPECT_EQ(ranks.fabric.counters(1).unexpected_at_close, std::vector<Tag>({tag_of(0, 3)}));
  }
}

TEST(Close, MessagesThatComeTooLateAreCounted) {
  Ranks ranks(2);
  ranks.send(0, 1, 5, "late");
  ranks.port(1).close(milliseconds(1));
  ranks.settle_all();
  EXPECT_EQ(ranks.fabric.counters(1).arrived_after_close, 1U);
  EXPECT_TRUE(ranks.fabric.counters(1).unexpected_at_close.empty());
}

TEST(Close, IsRefusedWhileARequestIsPending) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  ranks.recv(1, 0, 5);
  EXPECT_THROW(ranks.port(1).close(milliseconds(1)), std::logic_error);
  Ranks others(2, {.eager_below = kNoneEager});
  others.send(0, 1, 5, "x");
  EXPECT_THROW(others.port(0).close(milliseconds(1)), std::logic_error);
}

TEST(Close, APortWhoseOwnerLetsItGoWithoutClosingHasDied) {
  Ranks ranks(2);
  Call& received = ranks.recv(1, 0, 5);
  ranks.fabric.take_port(0).reset();
  while (ranks.fabric.deliver_one() || ranks.fabric.advance_to_next()) ranks.port(1).progress();
  ranks.port(1).progress();
  EXPECT_EQ(received.status(), Status::kPeerFailed);
  EXPECT_THROW(static_cast<void>(ranks.fabric.port(0)), std::logic_error);
}

TEST(Close, TheCountersOutliveThePort) {
  Ranks ranks(2);
  const std::unique_ptr<Transport> port = ranks.fabric.take_port(0);
  EXPECT_EQ(&ranks.fabric.port(0), port.get());
  ranks.send(0, 1, tag_of(0, 1), "four");
  ranks.settle();
  port->close(milliseconds(1));
  EXPECT_EQ(ranks.fabric.counters(0).of(TagKind::kCollective).bytes_sent, 4U);
  EXPECT_THROW(static_cast<void>(ranks.fabric.take_port(0)), std::logic_error);
}

}  // namespace
}  // namespace gtopk::transport::inproc
