// Every transport: ends that close, and what the others are told about it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/transport/suite/every_transport.hpp"

namespace gtopk::test {
namespace {

class Departure : public EveryTransport {};
INSTANTIATE_TEST_SUITE_P(Every, Departure, testing::ValuesIn(networks()), name_of);

class ToldDeparture : public EveryTransport {
 protected:
  /// Moves until `at` reports a failure; returns all that it has reported by then.
  std::vector<transport::PeerFailure> told(std::size_t at) {
    std::vector<transport::PeerFailure> failures;
    EXPECT_TRUE(network().until([&] {
      failures = end(at).take_failures();
      return !failures.empty();
    }));
    return failures;
  }
};
INSTANTIATE_TEST_SUITE_P(Every, ToldDeparture,
                         testing::ValuesIn(networks_that(&NetworkKind::tells_of_ends)), name_of);

std::vector<NetworkKind> told_after_sends() {
  std::vector<NetworkKind> kinds = networks_that(&NetworkKind::tells_of_ends);
  std::erase_if(kinds, [](const NetworkKind& kind) { return !kind.sends_ahead; });
  return kinds;
}

class ToldDepartureAfterSends : public EveryTransport {};
INSTANTIATE_TEST_SUITE_P(Every, ToldDepartureAfterSends, testing::ValuesIn(told_after_sends()),
                         name_of);

TEST_P(Departure, CloseDeliversWhatWasSent) {
  for (std::uint64_t seed = 0; seed < GetParam().seeds; ++seed) {
    begin(2, seed);
    const Message& in = recv(1, 0, 1, 200'000);
    Message& out = send(0, 1, 1, pattern(200'000, 4));
    end(1).expect_departure(id(1, 0));
    ASSERT_TRUE(done({&out}));
    network().close(0);
    ASSERT_TRUE(done({&in}));
    EXPECT_EQ(in.status(), Status::kOk);
    EXPECT_TRUE(in.bytes == out.bytes);
  }
}

TEST_P(Departure, PeersMayCloseInAnyOrder) {
  for (const std::size_t first : {0UL, 1UL, 2UL}) {
    begin(3);
    for (std::size_t from = 0; from < 3; ++from) {
      for (std::size_t to = 0; to < 3; ++to) {
        recv(to, from, 1, 1);
        send(from, to, 1, "x");
        ASSERT_TRUE(all_done());
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t leaving = (first + i) % 3;
      for (std::size_t j = i + 1; j < 3; ++j) {
        const std::size_t staying = (first + j) % 3;
        end(staying).expect_departure(id(staying, leaving));
      }
      network().close(leaving);
      end(leaving).wake();  // harmless after close
      for (std::size_t j = i + 1; j < 3; ++j) {
        EXPECT_TRUE(end((first + j) % 3).take_failures().empty());
      }
    }
  }
}

TEST_P(ToldDeparture, AfterLastMessage_EndsReceivesAndIsReportedOnce) {
  for (std::uint64_t seed = 0; seed < GetParam().seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    begin(3, seed);
    const Message& first = recv(1, 0, 5, 10);
    const Message& second = recv(1, 0, 6, 70'000);
    const Message& never = recv(1, 0, 7, 10);
    Message& other = recv(1, 2, 7, 10);
    Message& one = send(0, 1, 5, "one");
    Message& two = send(0, 1, 6, pattern(70'000, 1));
    ASSERT_TRUE(done({&one, &two}));
    network().close(0);
    const std::vector<transport::PeerFailure> failures = told(1);
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_EQ(failures[0].peer, id(1, 0));
    EXPECT_FALSE(failures[0].reason.empty());
    ASSERT_TRUE(done({&first, &second, &never}));
    EXPECT_EQ(first.text(), "one");
    EXPECT_TRUE(second.text() == pattern(70'000, 1));
    EXPECT_EQ(never.status(), Status::kPeerFailed);
    EXPECT_FALSE(end(1).connected(id(1, 0)));
    EXPECT_EQ(send(1, 0, 8, "late").status(), Status::kPeerFailed);
    EXPECT_EQ(recv(1, 0, 8, 4).status(), Status::kPeerFailed);
    EXPECT_TRUE(other.pending()) << "of a peer that is there";
    send(2, 1, 7, "still here");
    ASSERT_TRUE(done({&other}));
    EXPECT_EQ(other.text(), "still here");
    EXPECT_TRUE(end(1).take_failures().empty());
  }
}

TEST_P(ToldDeparture, ThatWasExpectedEndsReceivesAndIsNotReported) {
  begin(2);
  const Message& hello = recv(1, 0, 1, 1);
  Message& out = send(0, 1, 1, "x");
  ASSERT_TRUE(done({&hello, &out}));
  const Message& never = recv(1, 0, 7, 10);
  end(1).expect_departure(id(1, 0));
  network().close(0);
  ASSERT_TRUE(done({&never}));
  EXPECT_EQ(never.status(), Status::kPeerFailed);
  EXPECT_TRUE(end(1).take_failures().empty());
}

TEST_P(ToldDepartureAfterSends, LeavesWhatHadComeToBeReceived) {
  for (const bool expected : {true, false}) {
    begin(2);
    const Message& hello = recv(1, 0, 1, 1);
    send(0, 1, 1, "x");
    send(0, 1, 5, "one");
    send(0, 1, 5, "");
    send(0, 1, 6, "too long");
    Message& last = send(0, 1, 7, "last");
    ASSERT_TRUE(done({&hello, &last}));
    ASSERT_TRUE(network().until([&] { return end(1).lies_there(7); }));
    if (expected) {
      end(1).expect_departure(id(1, 0));
    }
    const Message& never = recv(1, 0, 9, 10);
    network().close(0);
    ASSERT_TRUE(done({&never}));
    EXPECT_EQ(never.status(), Status::kPeerFailed);

    const Message& one = recv(1, 0, 5, 10);
    const Message& empty = recv(1, 0, 5, 10);
    const Message& none = recv(1, 0, 5, 10);
    const Message& cut = recv(1, 0, 6, 3);
    ASSERT_TRUE(done({&one, &empty, &none, &cut}));
    EXPECT_EQ(one.status(), Status::kOk);
    EXPECT_EQ(one.text(), "one");
    EXPECT_EQ(empty.status(), Status::kOk);
    EXPECT_EQ(none.status(), Status::kPeerFailed);
    EXPECT_EQ(cut.status(), Status::kTruncated);
    EXPECT_EQ(end(1).discard(7, ~Tag{0}), 1U);
    EXPECT_EQ(recv(1, 0, 7, 10).status(), Status::kPeerFailed);
  }
}

TEST_P(ToldDepartureAfterSends, GivenUpPeer_FailsReceiveOfItsMessage) {
  begin(2);
  const Message& hello = recv(1, 0, 1, 1);
  send(0, 1, 1, "x");
  Message& last = send(0, 1, 7, "last");
  ASSERT_TRUE(done({&hello, &last}));
  ASSERT_TRUE(network().until([&] { return end(1).lies_there(7); }));
  end(1).give_up(id(1, 0));
  EXPECT_EQ(recv(1, 0, 7, 10).status(), Status::kPeerFailed);
  EXPECT_EQ(end(1).discard(7, ~Tag{0}), 1U);
}

TEST_P(ToldDeparture, BeforeTheFirstMessageIsFoundByIt) {
  begin(2);
  network().close(0);
  const Message& in = recv(1, 0, 5, 10);
  EXPECT_EQ(told(1).size(), 1U);
  ASSERT_TRUE(done({&in}));
  EXPECT_EQ(in.status(), Status::kPeerFailed);
}

}  // namespace
}  // namespace gtopk::test
