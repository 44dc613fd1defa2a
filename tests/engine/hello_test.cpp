// Engine: ranks that have left, or have died, before another rank first talks to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/calls.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using transport::inproc::Death;
using transport::inproc::FabricOptions;

constexpr std::uint32_t kLeaver = 4;
constexpr transport::Duration kAtOnce = std::chrono::milliseconds(200);

FabricOptions all_eager() {
  FabricOptions options;
  options.eager_below = std::numeric_limits<std::size_t>::max();
  return options;
}

enum class First : std::uint8_t { kReceive, kSend, kLongSend, kCollective };
enum class Departure : std::uint8_t {
  kClosed,           ///< the connection is refused
  kSilent,           ///< as over shared memory: nothing is refused, and nothing answered
  kAfterFirst,       ///< while the first operation waits, or has been sent
  kSilentAfterFirst  ///< the same, but the leaver does not know of the first operation
};

/// The first thing that rank 1 has to do with rank 4.
class FirstContact : public testing::TestWithParam<std::tuple<First, Departure>> {
 protected:
  [[nodiscard]] SharedEnding begin(std::uint32_t rank) {
    switch (std::get<First>(GetParam())) {
      case First::kReceive:
        return ranks_.submit(rank, gtopk::recv(bytes_[rank], kLeaver, 7));
      case First::kSend:
        return ranks_.submit(rank, gtopk::send(bytes_[rank], kLeaver, 7));
      case First::kLongSend:
        return ranks_.submit(rank, gtopk::send(long_, kLeaver, 7));
      case First::kCollective:
        return ranks_.submit(rank, gtopk::all_reduce(&values_[rank], 1, DataType::kInt64));
    }
    return nullptr;
  }

  /// The leaver takes no part any more, and its directory entry says so.
  void vanish() {
    ranks_.freeze(kLeaver);
    ranks_.directory()[kLeaver] =
        engine::PeerRecord{.address = {}, .left = true, .last_words = "no such dataset"};
  }

  void expect_left(const SharedEnding& ending) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kPeerFailed) << ending->text();
    EXPECT_NE(ending->text().find("rank 4 (host node4, pid 1004) has left (it destroyed its "
                                  "process group or exited)"),
              std::string::npos)
        << ending->text();
  }

  InprocRanks ranks_{5, all_eager()};
  std::vector<reference::Bytes> bytes_ = std::vector<reference::Bytes>(5, reference::Bytes(8));
  reference::Bytes long_ = reference::Bytes(100'000);
  std::vector<std::int64_t> values_ = std::vector<std::int64_t>(5, 1);
};

TEST_P(FirstContact, DepartedRank_FailsAtOnceAndGroupStaysUsable) {
  const auto [first, departure] = GetParam();
  std::vector<SharedEnding> endings;
  const auto begin_all = [&] {
    const bool collective = first == First::kCollective;
    for (std::uint32_t rank = collective ? 0 : 1; rank < (collective ? kLeaver : 2); ++rank) {
      endings.push_back(begin(rank));
    }
  };
  switch (departure) {
    case Departure::kClosed:
      ranks_.leave(kLeaver);
      begin_all();
      break;
    case Departure::kSilent:
      vanish();
      begin_all();
      break;
    case Departure::kAfterFirst:
      ranks_.freeze(kLeaver);
      begin_all();
      ranks_.run_for(std::chrono::milliseconds(20));
      ranks_.thaw(kLeaver);
      ranks_.engine(kLeaver).say_goodbye();
      break;
    case Departure::kSilentAfterFirst:
      ranks_.freeze(kLeaver);
      begin_all();
      ranks_.run_for(std::chrono::milliseconds(20));
      vanish();
      break;
  }
  const transport::TimePoint before = ranks_.now();
  ranks_.run_all();
  EXPECT_LT(ranks_.now() - before, kAtOnce);
  for (const SharedEnding& ending : endings) {
    expect_left(ending);
    if (departure == Departure::kSilent || departure == Departure::kSilentAfterFirst) {
      EXPECT_NE(ending->text().find("its last error: no such dataset"), std::string::npos)
          << ending->text();
    }
  }
  EXPECT_FALSE(ranks_.group(1)->failure.has_value()) << ranks_.group(1)->failure->what();
  const SharedEnding sent = ranks_.submit(1, gtopk::send(bytes_[1], 2, 9));
  const SharedEnding received = ranks_.submit(2, gtopk::recv(bytes_[2], 1, 9));
  ranks_.run_all();
  EXPECT_TRUE(sent->good()) << sent->text();
  EXPECT_TRUE(received->good()) << received->text();
}

INSTANTIATE_TEST_SUITE_P(Cases, FirstContact,
                         testing::Combine(testing::Values(First::kReceive, First::kSend,
                                                          First::kLongSend, First::kCollective),
                                          testing::Values(Departure::kClosed, Departure::kSilent,
                                                          Departure::kAfterFirst,
                                                          Departure::kSilentAfterFirst)));

TEST(Hello, ofEveryPair_isSaidOnceEachWay) {
  InprocRanks ranks(2, all_eager());
  ASSERT_EQ(support::group_works(ranks), "");
  ASSERT_EQ(support::group_works(ranks), "");
  ranks.settle();
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_EQ(ranks.fabric().counters(rank).of(transport::TagKind::kControl).messages_sent, 1U);
  }
}

// The receiver never turns to the sender by itself.
TEST(Hello, thatCannotBeSent_isSaidWithTheNextMessage) {
  InprocRanks ranks(2, all_eager());
  bool refuses = true;
  ranks.fabric().set_faults([&](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    fault.refuse = transport::kind_of(sent.tag) == transport::TagKind::kControl &&
                   std::exchange(refuses, false);
    return fault;
  });
  const reference::Bytes bytes(8);
  // Both are called before the engine's next step.
  const SharedEnding first = ranks.submit(0, gtopk::send(bytes, 1, 7));
  const SharedEnding second = ranks.submit(0, gtopk::send(bytes, 1, 7));
  ranks.run_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(refuses);
  EXPECT_TRUE(first->good()) << first->text();
  EXPECT_TRUE(second->good()) << second->text();
}

TEST(Hello, ofALivingRankThatIsSlow_isWaitedForByASend) {
  InprocRanks ranks(2, all_eager());
  const reference::Bytes bytes(8);
  ranks.freeze(1);
  const SharedEnding sent = ranks.submit(0, gtopk::send(bytes, 1, 7));
  ranks.run_for(std::chrono::seconds(10));
  EXPECT_FALSE(sent->ended);
  ranks.thaw(1);
  ranks.run_all();
  EXPECT_TRUE(sent->good()) << sent->text();
}

TEST(Hello, Unanswered_TimesOutSendAndMessageIsNotReceived) {
  InprocRanks ranks(2, all_eager());
  const reference::Bytes bytes(8);
  reference::Bytes buffer(8);
  ranks.freeze(1);
  engine::OperationSpec send(gtopk::send(bytes, 1, 7));
  send.timeout = std::chrono::seconds(1);
  const SharedEnding sent = ranks.submit(0, std::move(send));
  ranks.run_until([&] { return sent->ended; });
  ASSERT_TRUE(sent->error.has_value());
  EXPECT_EQ(sent->error->kind(), ErrorKind::kTimeout) << sent->text();
  EXPECT_NE(sent->text().find("rank 1 (host node1, pid 1001) does not answer"), std::string::npos)
      << sent->text();
  ranks.thaw(1);
  ranks.settle();
  engine::OperationSpec receive(gtopk::recv(buffer, 0, 7));
  receive.timeout = std::chrono::seconds(1);
  const SharedEnding received = ranks.submit(1, std::move(receive));
  ranks.run_all();
  EXPECT_FALSE(received->good());
}

TEST(Hello, ToKilledRank_FailsGroupAndSaysItLeftUncleanly) {
  InprocRanks ranks(3, all_eager());
  ranks.kill(2, Death::kNoticed);
  reference::Bytes buffer(8);
  const SharedEnding received = ranks.submit(0, gtopk::recv(buffer, 2, 7));
  ranks.run_all();
  ASSERT_TRUE(received->error.has_value());
  EXPECT_NE(received->text().find("rank 2 (host node2, pid 1002) is gone: Connection refused. It "
                                  "did not leave cleanly"),
            std::string::npos)
      << received->text();
  EXPECT_TRUE(ranks.group(0)->failure.has_value());
}

TEST(Hello, ToKilledRankWithFailedDirectory_NamesBothFailures) {
  InprocRanks ranks(3, all_eager());
  ranks.directory()[2].reset();
  ranks.kill(2, Death::kNoticed);
  const reference::Bytes bytes(8);
  const SharedEnding sent = ranks.submit(0, gtopk::send(bytes, 2, 7));
  ranks.run_all();
  ASSERT_TRUE(sent->error.has_value());
  EXPECT_NE(sent->text().find("rank 2 (host node2, pid 1002) is gone: Connection refused. Whether "
                              "it has left is unknown, because the directory failed: the directory "
                              "is gone"),
            std::string::npos)
      << sent->text();
}

TEST(Hello, ToDepartedRank_QuotesLastErrorWrittenAfterLookup) {
  InprocRanks ranks(3, all_eager());
  ranks.freeze(2);
  ranks.after_lookup([&](std::uint32_t rank) {
    ranks.directory()[rank] =
        engine::PeerRecord{.address = {}, .left = true, .last_words = "no route to rank 0"};
    ranks.fabric().show_end(rank);
  });
  reference::Bytes buffer(8);
  const SharedEnding received = ranks.submit(0, gtopk::recv(buffer, 2, 7));
  ranks.run_until([&] { return received->ended; });
  EXPECT_NE(received->text().find("rank 2 (host node2, pid 1002) has left (it destroyed its "
                                  "process group or exited); its last error: no route to rank 0"),
            std::string::npos)
      << received->text();
}

TEST(Hello, ToEndedProcessWithoutRecord_SaysProcessHasEnded) {
  InprocRanks ranks(3, all_eager());
  ranks.freeze(2);
  ranks.fabric().show_end(2);
  reference::Bytes buffer(8);
  const SharedEnding received = ranks.submit(0, gtopk::recv(buffer, 2, 7));
  ranks.run_until([&] { return received->ended; });
  EXPECT_NE(received->text().find("rank 2 (host node2, pid 1002) is gone: its process has ended"),
            std::string::npos)
      << received->text();
}

TEST(Directory, thatFailedOnce_isAskedAgainWhetherARankHasLeft) {
  InprocRanks ranks(3, all_eager());
  ranks.freeze(2);
  ranks.directory()[2].reset();
  reference::Bytes buffer(8);
  engine::OperationSpec receive(gtopk::recv(buffer, 2, 7));
  receive.timeout = std::chrono::minutes(10);
  const SharedEnding received = ranks.submit(0, std::move(receive));
  ranks.run_for(std::chrono::seconds(1));
  EXPECT_FALSE(received->ended);
  ranks.directory()[2] = engine::PeerRecord{.address = {}, .left = true, .last_words = "enough"};
  ranks.run_for(std::chrono::minutes(1));
  ASSERT_TRUE(received->ended);
  EXPECT_NE(received->text().find("has left (it destroyed its process group or exited); its last "
                                  "error: enough"),
            std::string::npos)
      << received->text();
}

// Each question may take its whole timeout, and delays the lookups of addresses.
TEST(Directory, thatFails_isAskedEveryTenSeconds) {
  InprocRanks ranks(3, all_eager());
  ranks.freeze(2);
  ranks.directory()[2].reset();
  reference::Bytes buffer(8);
  engine::OperationSpec receive(gtopk::recv(buffer, 2, 7));
  receive.timeout = std::chrono::minutes(10);
  const SharedEnding received = ranks.submit(0, std::move(receive));
  ranks.run_for(std::chrono::seconds(11));
  const std::uint64_t before = ranks.failed_lookups();
  EXPECT_GE(before, 1U);
  ranks.run_for(std::chrono::minutes(1));
  EXPECT_FALSE(received->ended);
  EXPECT_GE(ranks.failed_lookups() - before, 5U);
  EXPECT_LE(ranks.failed_lookups() - before, 6U);
  ranks.run_all();
  ASSERT_TRUE(received->error.has_value());
  EXPECT_EQ(received->error->kind(), ErrorKind::kTimeout) << received->text();
}

/// A receive on rank 1 that nobody serves.
SharedEnding time_out(InprocRanks& ranks) {
  reference::Bytes buffer(8);
  engine::OperationSpec receive(gtopk::recv(buffer, 0, 7));
  receive.timeout = std::chrono::milliseconds(10);
  SharedEnding late = ranks.submit(1, std::move(receive));
  ranks.run_all();
  return late;
}

TEST(LastError, OfDepartingRank_IsQuotedToWaitingReceive) {
  InprocRanks ranks(3, all_eager());
  ASSERT_EQ(support::group_works(ranks), "");
  ASSERT_FALSE(time_out(ranks)->good());
  reference::Bytes buffer(8);
  const SharedEnding waiting = ranks.submit(2, gtopk::recv(buffer, 1, 8));
  ranks.leave(1);
  ranks.run_all();
  ASSERT_TRUE(waiting->error.has_value());
  EXPECT_NE(waiting->text().find("has left (it destroyed its process group or exited); its last "
                                 "error: recv(from 0, tag 7) of group 'default' on rank 1: timed "
                                 "out"),
            std::string::npos)
      << waiting->text();
}

TEST(LastError, beforeAnOperationThatSucceeded_isForgotten) {
  InprocRanks ranks(3, all_eager());
  ASSERT_FALSE(time_out(ranks)->good());
  ASSERT_EQ(support::group_works(ranks), "");
  EXPECT_EQ(ranks.engine(1).last_words(), "");
  ranks.engine(1).set_last_words("no such dataset");
  EXPECT_EQ(ranks.engine(1).last_words(), "no such dataset");
}

// Rank 1 has never talked to the others, and it takes them 3 s to connect to it.
TEST(LateRank, ThatMustFirstBeConnectedToIsNotSilent) {
  InprocRanks ranks(3, support::network(0, std::chrono::microseconds(20)));
  ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    if (sent.source == 1) {
      fault.delay = std::chrono::seconds(3);
    }
    return fault;
  });
  std::vector<std::int64_t> values(3);
  std::vector<SharedEnding> endings;
  for (const std::uint32_t rank : {0U, 2U}) {
    engine::OperationSpec spec = gtopk::all_reduce(&values[rank], 1, DataType::kInt64);
    spec.timeout = std::chrono::seconds(1);
    endings.push_back(ranks.submit(rank, std::move(spec)));
  }
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    EXPECT_THAT(ending->text(), testing::HasSubstr("rank 1 (host node1, pid 1001) never entered"));
  }
}

}  // namespace
}  // namespace gtopk
