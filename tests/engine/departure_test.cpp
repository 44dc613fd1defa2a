// Engine: ranks that leave, groups that are destroyed, and engines that shut down with operations
// in flight.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include <fmt/format.h>

#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using support::uneven_network;
using transport::inproc::FabricOptions;

FabricOptions eager() {
  FabricOptions options;
  options.eager_below = std::numeric_limits<std::size_t>::max();
  return options;
}

// A rank may leave as soon as its own part has ended; its goodbye may overtake its last messages.
TEST(Departure, RightAfterTheLastCollectiveFailsNobody) {
  for (std::uint64_t seed = 0; seed < support::seeds(60); ++seed) {
    const std::uint32_t size = 2 + seed % 7;
    InprocRanks ranks(size, uneven_network(seed));
    std::vector<std::vector<std::int64_t>> values(size, std::vector<std::int64_t>(300, 1));
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      endings.push_back(
          ranks.submit(rank, gtopk::all_reduce(values[rank].data(), 300, DataType::kInt64)));
    }
    for (std::uint32_t left = 0; left < size; ++left) {
      std::uint32_t next = size;
      ranks.run_until([&] {
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          if (ranks.running(rank) && endings[rank]->ended) {
            next = rank;
          }
        }
        return next != size;
      });
      ASSERT_TRUE(endings[next]->good()) << "seed " << seed << ": " << endings[next]->text();
      ranks.leave(next);
    }
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(ranks.fabric().counters(rank).unexpected_at_close.empty());
    }
  }
}

TEST(Departure, WhileOthersWaitForItIsAnErrorThatNamesIt) {
  for (std::uint64_t seed = 0; seed < support::seeds(40); ++seed) {
    const std::uint32_t size = 2 + seed % 5;
    const std::uint32_t leaver = seed % size;
    InprocRanks ranks(size, uneven_network(seed));
    ASSERT_EQ(support::group_works(ranks), "");
    std::vector<std::int64_t> values(size, 1);
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (rank == leaver) {
        continue;
      }
      endings.push_back(ranks.submit(rank, gtopk::all_reduce(&values[rank], 1, DataType::kInt64)));
    }
    const transport::TimePoint before = ranks.now();
    ranks.leave(leaver);
    ranks.run_all();
    EXPECT_LT(ranks.now() - before, std::chrono::seconds(3));
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->error.has_value());
      EXPECT_EQ(ending->error->kind(), ErrorKind::kPeerFailed) << ending->text();
      EXPECT_NE(ending->text().find(fmt::format("rank {} (host node{}", leaver, leaver)),
                std::string::npos)
          << ending->text();
      EXPECT_NE(ending->text().find("has left"), std::string::npos) << ending->text();
      EXPECT_NE(ending->text().find("all_reduce #2"), std::string::npos) << ending->text();
    }
    ranks.settle();
  }
}

/// Delays only the arrival at rank 1 of what ranks 2 and 3 tell it.
void let_rank_1_hear_late(InprocRanks& ranks) {
  ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    const auto kind = static_cast<transport::TagKind>(sent.tag >> 62U);
    if (kind == transport::TagKind::kControl && sent.destination == 1 && sent.source >= 2) {
      fault.delay = std::chrono::seconds(20);
    }
    return fault;
  });
}

/// In gtopk-tree with four ranks, 1 talks only to 0, and 3 only to 2.
sparse::SparseCall walk_the_tree(std::vector<float>& tensor) {
  sparse::SparseCall call;
  call.tensor = tensor.data();
  call.d = tensor.size();
  call.options = {.k = 3, .algorithm = "gtopk-tree"};
  return call;
}

TEST(Departure, AfterARanksDeathIsNotTakenForTheCause) {
  InprocRanks ranks(4);
  let_rank_1_hear_late(ranks);
  std::vector<std::vector<float>> tensors(4, std::vector<float>(10, 1.0F));
  const auto call = [&](std::uint32_t rank) {
    return sparse::collective(walk_the_tree(tensors[rank]));
  };
  for (const SharedEnding& ending : ranks.run(call)) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
  std::vector<SharedEnding> endings;
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    endings.push_back(ranks.submit(rank, call(rank)));
  }
  ranks.kill(3, transport::inproc::Death::kNoticed);
  ranks.run_until([&] { return endings[0]->ended; });
  ranks.leave(0);
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_NE(ending->text().find("rank 3 (host node3, pid 1003) is gone"), std::string::npos)
        << ending->text();
  }
}

TEST(Departure, AfterAMismatchIsNotTakenForTheCause) {
  InprocRanks ranks(4);
  let_rank_1_hear_late(ranks);
  std::vector<std::vector<float>> tensors(4, std::vector<float>(10, 1.0F));
  tensors[3].resize(9);
  std::vector<SharedEnding> endings;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    endings.push_back(ranks.submit(rank, sparse::collective(walk_the_tree(tensors[rank]))));
  }
  ranks.run_until([&] { return endings[0]->ended; });
  ranks.leave(0);
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
    EXPECT_NE(ending->text().find("d=9,"), std::string::npos) << ending->text();
  }
}

// Over shared memory nobody sees a connection end, so every rank that may wait for a goodbye must
// get one. Here rank 0 has an endpoint to rank 1, through its message, and rank 1 has none to rank
// 0.
TEST(Departure, ToARankThatNeverSent_EndsWithinOneSecond) {
  InprocRanks ranks(2, eager());
  const reference::Bytes bytes(10);
  const SharedEnding sent = ranks.submit(0, gtopk::send(bytes, 1, 5));
  ranks.run_all();
  ASSERT_TRUE(sent->good()) << sent->text();
  ranks.run_for(std::chrono::milliseconds(5));
  const transport::TimePoint before = ranks.now();
  ranks.leave(0);
  EXPECT_LT(ranks.now() - before, std::chrono::seconds(1));
}

TEST(Departure, IsAnnouncedByARankThatWasToldOfAFailure) {
  InprocRanks ranks(2, eager());
  ranks.engine(0).abort_group(*ranks.group(0), Error(ErrorKind::kAborted, "the reason"));
  ranks.run_for(std::chrono::milliseconds(5));
  const auto& said = ranks.fabric().counters(1).of(transport::TagKind::kControl);
  ASSERT_EQ(said.messages_sent, 2U);  // hello, and that it has heard
  ranks.leave(1);
  EXPECT_EQ(said.messages_sent, 3U);
}

TEST(Departure, OfOneRankLeavesOtherGroupsWorking) {
  InprocRanks ranks(3);
  const auto pair = ranks.make_group("pair", {0, 1});
  ASSERT_EQ(support::group_works(ranks), "");
  ranks.leave(2);
  std::vector<std::int64_t> values = {4, 5};
  const SharedEnding one =
      ranks.submit(0, pair[0], gtopk::all_reduce(&values[0], 1, DataType::kInt64));
  const SharedEnding other =
      ranks.submit(1, pair[1], gtopk::all_reduce(&values[1], 1, DataType::kInt64));
  ranks.run_all();
  EXPECT_TRUE(one->good() && other->good());
  EXPECT_EQ(values, (std::vector<std::int64_t>{9, 9}));
}

TEST(Shutdown, WithOperationsUnderWayEndsThemHereAndThere) {
  for (std::uint64_t seed = 0; seed < support::seeds(40); ++seed) {
    const std::uint32_t size = 2 + seed % 4;
    const std::uint32_t leaver = seed % size;
    InprocRanks ranks(size, uneven_network(seed));
    std::vector<std::vector<reference::Bytes>> memory(size, std::vector<reference::Bytes>(40));
    std::vector<std::vector<SharedEnding>> endings(size);
    for (std::uint32_t number = 0; number < 40; ++number) {
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        memory[rank][number].resize(80000);
        // The others never call the last one, so the leaver is in the middle of it.
        if (number == 39 && rank != leaver) {
          continue;
        }
        endings[rank].push_back(
            ranks.submit(rank, gtopk::all_reduce(memory[rank][number].data(),
                                                 number % 2 == 0 ? 1 : 20000, DataType::kInt32)));
      }
    }
    ranks.run_for(std::chrono::milliseconds(1));
    ranks.leave(leaver);
    ranks.run_all();
    ASSERT_TRUE(endings[leaver].back()->error.has_value());
    const std::string gone = fmt::format("rank {} (host node{}", leaver, leaver);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (const SharedEnding& ending : endings[rank]) {
        ASSERT_TRUE(ending->ended);
        if (ending->good()) {
          continue;
        }
        EXPECT_EQ(ending->error->kind(),
                  rank == leaver ? ErrorKind::kAborted : ErrorKind::kPeerFailed)
            << ending->text();
        const std::string cause = rank == leaver ? "leaving its process groups" : gone;
        EXPECT_NE(ending->text().find(cause), std::string::npos) << ending->text();
      }
    }
    ranks.settle();
  }
}

TEST(RemovedGroup, FailsWhatWasUnderWayOnEveryRank) {
  InprocRanks ranks(3);
  std::vector<std::int64_t> values(3, 1);
  std::vector<SharedEnding> endings;
  for (const std::uint32_t rank : {0U, 1U}) {
    endings.push_back(ranks.submit(rank, gtopk::all_reduce(&values[rank], 1, DataType::kInt64)));
  }
  ranks.run_for(std::chrono::milliseconds(5));
  ranks.engine(0).remove_group(*ranks.group(0));
  ranks.run_all();
  EXPECT_LT(ranks.now() - transport::TimePoint{}, std::chrono::seconds(1));
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kAborted) << ending->text();
    EXPECT_NE(ending->text().find("was destroyed on rank 0 (host node0"), std::string::npos)
        << ending->text();
  }
}

TEST(RemovedGroup, FinishedRank_DisturbsNobodyAndNextGroupWorks) {
  for (std::uint64_t seed = 0; seed < support::seeds(10); ++seed) {
    InprocRanks ranks(3, uneven_network(seed));
    for (int round = 0; round < 3; ++round) {
      auto groups = ranks.make_group("again", {0, 1, 2});
      std::vector<std::int64_t> values = {1, 2, 3};
      std::vector<SharedEnding> endings;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        endings.push_back(ranks.submit(rank, groups[rank],
                                       gtopk::all_reduce(&values[rank], 1, DataType::kInt64)));
      }
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        ranks.run_until([&] { return endings[rank]->ended; });
        ranks.engine(rank).when_idle(groups[rank], [&ranks, rank, group = groups[rank]] {
          ranks.engine(rank).post(
              [&ranks, rank, group] { ranks.engine(rank).remove_group(*group); });
        });
      }
      ranks.run_all();
      ranks.settle();
      for (const SharedEnding& ending : endings) {
        ASSERT_TRUE(ending->good()) << ending->text();
      }
      EXPECT_EQ(values, (std::vector<std::int64_t>{6, 6, 6}));
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

// Over shared memory nobody sees a connection end: only its goodbye tells that a rank has left.
TEST(Goodbye, IsAlsoSaidToARankThatSaidItBefore) {
  InprocRanks ranks(2);
  ASSERT_EQ(support::group_works(ranks), "");
  ranks.engine(0).say_goodbye();
  ranks.run_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(ranks.engine(0).farewell_said());
  ranks.engine(1).say_goodbye();
  ranks.run_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(ranks.engine(0).farewell_said());
  EXPECT_TRUE(ranks.engine(1).farewell_said());
}

// The goodbyes of several connections, the first of them behind other notices, and the end of the
// connections have all come before the engine turns to them.
TEST(Goodbye, IsNotLostToTheEndOfTheConnectionThatFollowsIt) {
  FabricOptions options = eager();
  options.connections = 4;
  InprocRanks ranks(3, options);
  const auto pair = ranks.make_group("pair", {0, 1});
  ASSERT_EQ(support::group_works(ranks), "");
  ranks.settle();
  ranks.freeze(0);
  ranks.engine(1).abort_group(*pair[1], Error(ErrorKind::kAborted, "the reason"));
  ranks.leave(1);
  ranks.fabric().thaw(0);
  do {
    while (ranks.fabric().deliver_one()) {
    }
  } while (ranks.fabric().advance_to_next());
  ranks.thaw(0);
  ranks.run_for(std::chrono::seconds(1));
  EXPECT_FALSE(ranks.group(0)->failure.has_value()) << ranks.group(0)->failure->what();
  EXPECT_TRUE(ranks.engine(0).has_left(ranks.group(0)->peer(1)));
}

// Over shared memory nobody sees a connection end, and here none ends: the goodbye must suffice.
class MessageOfDepartedRank : public testing::TestWithParam<std::size_t> {
 protected:
  /// Rank 1 has sent a message of tag 5 that is not received yet, and says goodbye.
  void SetUp() override {
    ASSERT_EQ(support::group_works(ranks_), "");
    const SharedEnding sent = ranks_.submit(1, gtopk::send(unreceived_, 0, 5));
    ranks_.run_all();
    ASSERT_TRUE(sent->good()) << sent->text();
    ranks_.engine(1).say_goodbye();
  }
  void expect_left(const SharedEnding& ending) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kPeerFailed) << ending->text();
    EXPECT_NE(ending->text().find("rank 1 (host node1, pid 1001) has left"), std::string::npos)
        << ending->text();
    EXPECT_LT(ranks_.now() - begin_, std::chrono::seconds(1));
  }

  InprocRanks ranks_{2, eager()};
  transport::TimePoint begin_ = ranks_.now();
  const reference::Bytes unreceived_ = reference::Bytes(GetParam(), std::byte{42});
  reference::Bytes buffer_ = reference::Bytes(GetParam());
};

TEST_P(MessageOfDepartedRank, Unreceived_OtherCallsFailAtOnce) {
  std::int64_t value = 1;
  const SharedEnding collective = ranks_.submit(0, gtopk::all_reduce(&value, 1, DataType::kInt64));
  const SharedEnding receive = ranks_.submit(0, gtopk::recv(buffer_, 1, 6));
  ranks_.run_all();
  expect_left(collective);
  expect_left(receive);
}

TEST_P(MessageOfDepartedRank, Unreceived_IsReceivedExactlyOnce) {
  ranks_.run_for(std::chrono::milliseconds(5));
  std::int64_t value = 1;
  const SharedEnding none = ranks_.submit(0, gtopk::recv(buffer_, 1, 6));
  const SharedEnding collective = ranks_.submit(0, gtopk::all_reduce(&value, 1, DataType::kInt64));
  const SharedEnding there = ranks_.submit(0, gtopk::recv(buffer_, 1, 5));
  const SharedEnding again = ranks_.submit(0, gtopk::recv(buffer_, 1, 5));
  ranks_.run_all();
  expect_left(none);
  expect_left(collective);
  EXPECT_TRUE(there->good()) << there->text();
  EXPECT_TRUE(buffer_ == unreceived_);
  expect_left(again);
}

TEST_P(MessageOfDepartedRank, Unreceived_SendAndBroadcastFail) {
  ranks_.run_for(std::chrono::milliseconds(5));
  std::int64_t value = 1;
  const SharedEnding send = ranks_.submit(0, gtopk::send(unreceived_, 1, 6));
  const SharedEnding collective =
      ranks_.submit(0, gtopk::broadcast(Buffer(&value, 1, DataType::kInt64), 0));
  ranks_.run_all();
  expect_left(send);
  expect_left(collective);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MessageOfDepartedRank, testing::Values(0, 10, 100'000));

// Nor does it take a message that was under way when it said goodbye.
TEST(Goodbye, OfReceiver_FailsPendingSends) {
  FabricOptions never_eager;
  never_eager.eager_below = 0;
  for (const std::size_t bytes : {10U, 100'000U}) {
    InprocRanks ranks(2, never_eager);
    ASSERT_EQ(support::group_works(ranks), "");
    const reference::Bytes message(bytes);
    const transport::TimePoint begin = ranks.now();
    const SharedEnding sent = ranks.submit(0, gtopk::send(message, 1, 5));
    ranks.run_for(std::chrono::milliseconds(5));
    ASSERT_FALSE(sent->ended);
    ranks.engine(1).say_goodbye();
    ranks.run_all();
    EXPECT_LT(ranks.now() - begin, std::chrono::seconds(2));
    ASSERT_TRUE(sent->error.has_value());
    EXPECT_EQ(sent->error->kind(), ErrorKind::kPeerFailed) << sent->text();
    EXPECT_NE(sent->text().find("rank 1 (host node1, pid 1001) has left"), std::string::npos)
        << sent->text();
  }
}

TEST(AbortedGroup, EndsOnEveryRankWithTheReason) {
  InprocRanks ranks(4);
  std::vector<std::int64_t> values(4, 1);
  std::vector<SharedEnding> endings;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    endings.push_back(ranks.submit(rank, gtopk::all_reduce(&values[rank], 1, DataType::kInt64)));
  }
  ranks.run_for(std::chrono::milliseconds(5));
  ranks.engine(3).abort_group(*ranks.group(3), Error(ErrorKind::kAborted, "the reason"));
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kAborted);
    EXPECT_NE(ending->text().find("the reason"), std::string::npos) << ending->text();
  }
  EXPECT_TRUE(ranks.close().empty());
}

}  // namespace
}  // namespace gtopk
