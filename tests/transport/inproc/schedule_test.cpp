// Transport, inproc: the scheduler: what may overtake what, virtual time, and that a seed replays a
// run.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/transport/inproc/ranks.hpp"

namespace gtopk::transport::inproc {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// The order in which messages of different senders and tags reach rank 0.
std::string arrival_order(FabricOptions options) {
  Ranks ranks(4, options);
  std::vector<Message*> received;
  for (std::uint32_t i = 0; i < 9; ++i) {
    const std::uint32_t source = 1 + i % 3;
    received.push_back(&ranks.recv(0, source, tag_of(source, i)));
    ranks.send(source, 0, tag_of(source, i), std::to_string(i));
  }
  std::string order;
  while (order.size() < received.size()) {
    if (!ranks.fabric.deliver_one() && !ranks.fabric.advance_to_next()) {
      break;
    }
    ranks.port(0).progress();
    for (Message*& call : received) {
      if (call == nullptr || call->pending()) {
        continue;
      }
      order += call->text();
      call = nullptr;
    }
  }
  return order;
}

TEST(Schedule, TheSameSeedGivesTheSameRun) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(arrival_order({.seed = seed}), arrival_order({.seed = seed}));
  }
}

TEST(Schedule, SeedsReorderWhatTagsAndSendersLeaveFree) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    orders.insert(arrival_order({.seed = seed}));
  }
  EXPECT_GE(orders.size(), 15U);
}

TEST(Schedule, WithoutReorderingMessagesArriveAsTheyWereSent) {
  EXPECT_EQ(arrival_order({.seed = 3, .reorder = false}), "012345678");
}

TEST(Schedule, NothingArrivesBeforeItsTimeAndEverythingByTheLatest) {
  Ranks ranks(2, {.min_delay = microseconds(10), .max_delay = microseconds(50)});
  const TimePoint start = ranks.fabric.clock().now();
  std::vector<Message*> received;
  for (std::uint32_t i = 0; i < 20; ++i) {
    received.push_back(&ranks.recv(1, 0, tag_of(0, i)));
    ranks.send(0, 1, tag_of(0, i), "x");
  }
  ranks.settle();
  ranks.fabric.advance(microseconds(10) - Duration(1));
  ranks.settle();
  for (const Message* call : received) {
    EXPECT_TRUE(call->pending());
  }
  ASSERT_TRUE(ranks.fabric.advance_to_next());
  EXPECT_GE(ranks.fabric.clock().now() - start, microseconds(10));
  ranks.settle_all();
  EXPECT_LE(ranks.fabric.clock().now() - start, microseconds(50));
  for (const Message* call : received) {
    EXPECT_EQ(call->status(), Status::kOk);
  }
}

// The receiver of a notice relies on having received everything sent before it.
TEST(Schedule, DelayedMessage_HoldsBackItsSendersControlMessages) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Ranks ranks(2, {.seed = seed, .eager_below = seed % 2 == 0 ? kAllEager : kNoneEager});
    ranks.fabric.set_faults([](const Sent& sent) {
      return Fault{.delay = sent.number == 3 ? milliseconds(1) : milliseconds(0)};
    });
    for (std::uint32_t i = 0; i < 6; ++i) {
      ranks.send(0, 1, tag_of(0, i), "x");
    }
    Message& control = ranks.recv(1, 0, control_tag(1));
    ranks.send(0, 1, control_tag(1), "told");
    ranks.settle();
    EXPECT_TRUE(control.pending());
    ASSERT_TRUE(ranks.fabric.advance_to_next());
    while (control.pending()) {
      ASSERT_TRUE(ranks.fabric.deliver_one());
      ranks.port(1).progress();
      ranks.port(0).progress();
    }
    EXPECT_EQ(ranks.port(1).discard(0, 0), 6U) << "seed " << seed;
    ranks.settle_all();
  }
}

TEST(Schedule, ADelayedMessageHoldsBackItsOwnStreamAndNoOther) {
  Ranks ranks(2);
  ranks.fabric.set_faults([](const Sent& sent) {
    return Fault{.delay = sent.number == 0 ? milliseconds(1) : milliseconds(0)};
  });
  Message& first = ranks.recv(1, 0, 5);
  Message& second = ranks.recv(1, 0, 5);
  Message& other = ranks.recv(1, 0, 6);
  ranks.send(0, 1, 5, "first");
  ranks.send(0, 1, 5, "second");
  ranks.send(0, 1, 6, "other");
  ranks.settle();
  EXPECT_TRUE(first.pending());
  EXPECT_TRUE(second.pending());
  EXPECT_EQ(other.text(), "other");
  ranks.settle_all();
  EXPECT_EQ(first.text(), "first");
  EXPECT_EQ(second.text(), "second");
}

TEST(Schedule, ADeliveredEventActsOnlyInProgress) {
  Ranks ranks(2);
  Message& received = ranks.recv(1, 0, 5);
  ranks.send(0, 1, 5, "x");
  EXPECT_TRUE(ranks.fabric.deliver_one());
  EXPECT_TRUE(received.pending());
  EXPECT_FALSE(ranks.fabric.quiet());
  EXPECT_TRUE(ranks.port(1).progress());
  EXPECT_FALSE(received.pending());
  EXPECT_FALSE(ranks.port(1).progress());
  EXPECT_TRUE(ranks.fabric.quiet());
}

TEST(Wait, TimePassesOnlyWhenThereIsNothingElseToDo) {
  Ranks ranks(3, {.min_delay = milliseconds(2), .max_delay = milliseconds(2)});
  const auto since = [&, start = ranks.fabric.clock().now()] {
    return ranks.fabric.clock().now() - start;
  };
  ranks.port(0).wait(milliseconds(50));
  EXPECT_EQ(since(), milliseconds(50));
  ranks.port(0).wake();
  ranks.port(0).wait(milliseconds(50));  // this is the wait that the wake ends
  EXPECT_EQ(since(), milliseconds(50));
  ranks.port(0).wait(milliseconds(50));
  EXPECT_EQ(since(), milliseconds(100));

  ranks.send(0, 1, 5, "x");
  ranks.port(2).wait(milliseconds(1));
  EXPECT_EQ(since(), milliseconds(101));
  ranks.port(2).wait(milliseconds(50));  // until the message may arrive
  EXPECT_EQ(since(), milliseconds(102));
  ranks.port(2).wait(milliseconds(50));  // and then it does
  ranks.port(2).wait(milliseconds(50));  // rank 1 has not progressed yet
  EXPECT_EQ(since(), milliseconds(102));
  EXPECT_TRUE(ranks.port(1).progress());
}

}  // namespace
}  // namespace gtopk::transport::inproc
