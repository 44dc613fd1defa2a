// Transport, inproc: abandoned endpoints, and ports that close.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "tests/transport/inproc/ranks.hpp"

namespace gtopk::transport::inproc {
namespace {

using std::chrono::milliseconds;

TEST(GiveUp, NothingCompletesInsideTheCall) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  Message& received = ranks.recv(1, 0, 5);
  Message& sent = ranks.send(1, 0, 6, "hello");
  ranks.settle();
  ranks.port(1).give_up(ranks.id(1, 0));
  EXPECT_TRUE(received.pending());
  EXPECT_TRUE(sent.pending());
  ranks.settle();
  EXPECT_EQ(received.status(), Status::kPeerFailed);
  EXPECT_EQ(sent.status(), Status::kPeerFailed);
}

TEST(GiveUp, TheOtherSideIsTold) {
  Ranks ranks(2);
  ranks.recv(1, 0, 5);
  const Message& there = ranks.recv(0, 1, 8);
  ranks.port(1).give_up(ranks.id(1, 0));
  ranks.settle_all();
  EXPECT_EQ(there.status(), Status::kPeerFailed);
  EXPECT_EQ(ranks.port(0).take_failures().size(), 1U);
}

TEST(GiveUp, AFrozenPeerCanBeGivenUp) {
  Ranks ranks(2, {.eager_below = kNoneEager});
  ranks.fabric.freeze(0);
  Message& sent = ranks.send(1, 0, 5, "hello");
  ranks.port(1).give_up(ranks.id(1, 0));
  ranks.settle();
  EXPECT_EQ(sent.status(), Status::kPeerFailed);
  ranks.port(1).close(milliseconds(1));
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
  Message& received = ranks.recv(1, 0, 5);
  ranks.fabric.take_port(0).reset();
  while (ranks.fabric.deliver_one() || ranks.fabric.advance_to_next()) {
    ranks.port(1).progress();
  }
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
