// Engine: what becomes of messages that are held in their sender's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/engine/point_to_point.hpp"
#include "tests/engine/flow_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::SharedEnding;
using support::uneven_network;
using ::testing::HasSubstr;
using transport::TagKind;

TEST(HeldMessages, TimedOut_LeaveAtOnceAndAreSkipped) {
  for (std::uint64_t seed = 0; seed < support::seeds(24); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = 1024;  // headers leave at once
    FlowRanks ranks(2, options, 0);
    const reference::Bytes given_up(3000, std::byte{9});
    Messages before(2, 3000);
    Messages after(2, 3000);
    before.send_all(ranks, 0, 1);
    const SharedEnding lost = send_briefly(ranks, given_up);
    after.send_all(ranks, 0, 1);
    ranks.run_until([&] { return lost->ended; });
    ASSERT_TRUE(lost->error.has_value());
    EXPECT_EQ(lost->error->kind(), ErrorKind::kTimeout);
    EXPECT_THAT(lost->text(), HasSubstr("is alive and has made no matching call"));
    ranks.run_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ranks.held(0), 4U);
    EXPECT_EQ(ranks.engine(0).under_way(), 4U);
    before.receive_all(ranks, 0, 1);
    after.receive_all(ranks, 0, 1);
    ranks.run_all();
    before.expect_arrived();
    after.expect_arrived();
    EXPECT_TRUE(ranks.group(1)->withdrawn.empty());
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(HeldMessages, MessagesThatTimeOutTogetherAskTheirReceiverOnce) {
  FlowRanks ranks(2, 3, 0);
  constexpr std::size_t kMessages = 100;
  const reference::Bytes data(3000);
  std::vector<SharedEnding> lost;
  for (std::size_t number = 0; number < kMessages; ++number) {
    lost.push_back(send_briefly(ranks, data));
  }
  ranks.run_all();
  for (const SharedEnding& ending : lost) {
    EXPECT_THAT(ending->text(), HasSubstr("is alive and has made no matching call"));
  }
  ranks.settle();
  // And each message is withdrawn.
  EXPECT_LE(ranks.messages(0, TagKind::kControl), kMessages + 3);
  EXPECT_LE(ranks.messages(1, TagKind::kControl), kMessages + 3);
  EXPECT_EQ(ranks.held(0), 0U);
}

TEST(HeldMessages, TimedOutDuringClearance_ArriveOrAreSkipped) {
  std::size_t arrived = 0;
  constexpr std::uint64_t kSeeds = 400;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    // Half of them become free to go when the first is received, the others only when cleared.
    const std::uint64_t window = seed / 4 % 2 == 0 ? 0 : 6000;
    FlowRanks ranks(2, support::network(seed, std::chrono::milliseconds(3)), window);
    Messages first(1, 3000);
    const reference::Bytes given_up(3000, std::byte{2});
    const reference::Bytes next(3000, std::byte{3});
    first.send_all(ranks, 0, 1);
    const SharedEnding lost = send_briefly(ranks, given_up, std::chrono::milliseconds(10));
    ranks.run_for(std::chrono::milliseconds(1 + ranks.fabric().pick(20)));
    first.receive_all(ranks, 0, 1);
    arrived += received_though_given_up(ranks, lost, given_up, next) ? 1 : 0;
    first.expect_arrived();
    ranks.settle();
    EXPECT_EQ(ranks.held(0), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
  EXPECT_GT(arrived, 0U);
  EXPECT_LT(arrived, kSeeds);
}

TEST(HeldMessages, AHeldMessageToADeadRankFailsWithItsGroup) {
  for (const auto death : {transport::inproc::Death::kNoticed, transport::inproc::Death::kSilent}) {
    for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      FlowRanks ranks(2, uneven_network(seed), 0);
      const reference::Bytes data(3000);
      const SharedEnding out = send_briefly(ranks, data, std::chrono::seconds(5));
      ranks.run_for(std::chrono::milliseconds(5));
      EXPECT_EQ(ranks.held(0), 1U);
      ranks.kill(1, death);
      ranks.run_until([&] { return out->ended; });
      EXPECT_THAT(out->text(), HasSubstr("rank 1 (host node1"));
      ranks.run_for(4 * engine::Engine::kLingerBound);
      EXPECT_EQ(ranks.held(0), 0U);
      EXPECT_EQ(ranks.engine(0).under_way(), 0U);
    }
  }
}

TEST(HeldMessages, ToRankThatLeaves_FailAtOnceAndNameDeparture) {
  for (std::uint64_t seed = 0; seed < support::seeds(24); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FlowRanks ranks(3, uneven_network(seed), 0);
    ASSERT_EQ(support::group_works(ranks), "");
    const reference::Bytes data(3000);
    const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
    ranks.run_for(std::chrono::milliseconds(5));
    const transport::TimePoint before = ranks.now();
    ranks.leave(1);
    ranks.run_until([&] { return out->ended; });
    EXPECT_LT(ranks.now() - before, std::chrono::seconds(5));
    EXPECT_THAT(out->text(), HasSubstr("rank 1 (host node1"));
    EXPECT_THAT(out->text(), HasSubstr("has left"));
    EXPECT_EQ(ranks.held(0), 0U);
    ranks.settle();
    EXPECT_EQ(ranks.engine(0).under_way(), 0U);
  }
}

TEST(HeldMessages, AHeldMessageEndsWithItsGroup) {
  for (const std::uint32_t aborts : {0U, 1U}) {
    for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
      SCOPED_TRACE(fmt::format("rank {}, seed {}", aborts, seed));
      FlowRanks ranks(2, uneven_network(seed), 0);
      const reference::Bytes data(3000);
      const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
      ranks.run_for(std::chrono::milliseconds(5));
      ranks.engine(aborts).abort_group(*ranks.group(aborts), Error(ErrorKind::kAborted, "enough"));
      ranks.run_until([&] { return out->ended; });
      EXPECT_THAT(out->text(), HasSubstr("enough"));
      ranks.settle();
      EXPECT_EQ(ranks.held(0), 0U);
      EXPECT_EQ(ranks.engine(0).under_way(), 0U);
    }
  }
}

// The receiver's process lives on.
TEST(HeldMessages, ToGroupDestroyedByReceiver_FailAndAreReleased) {
  for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FlowRanks ranks(2, uneven_network(seed), 0);
    const auto side = ranks.make_group("side", {0, 1});
    const reference::Bytes data(3000);
    engine::OperationSpec spec(gtopk::send(data, 1, kTag));
    spec.timeout = std::chrono::seconds(1);
    const SharedEnding out = ranks.submit(0, side[0], std::move(spec));
    ranks.run_for(std::chrono::milliseconds(5));
    ranks.engine(1).remove_group(*side[1]);
    ranks.run_until([&] { return out->ended; });
    EXPECT_THAT(out->text(), HasSubstr("has destroyed the group"));
    ranks.run_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ranks.held(0), 0U);
    EXPECT_EQ(ranks.engine(0).under_way(), 0U);
    EXPECT_EQ(support::group_works(ranks), "");
  }
}

TEST(HeldMessages, SizeMismatch_FailsReceiveAndReleasesSender) {
  for (const auto& [sent, expected] : {std::pair{100UL, 10UL}, std::pair{10UL, 100UL},
                                       std::pair{9000UL, 10UL}, std::pair{10UL, 9000UL}}) {
    for (const std::uint64_t window : {std::uint64_t{0}, kWindow}) {
      for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
        SCOPED_TRACE(
            fmt::format("{} to {} bytes, window {}, seed {}", sent, expected, window, seed));
        FlowRanks ranks(2, uneven_network(seed), window);
        const reference::Bytes data(sent);
        reference::Bytes buffer(expected);
        const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
        const SharedEnding in = ranks.submit(1, gtopk::recv(buffer, 0, kTag));
        ranks.run_all();
        ASSERT_TRUE(in->error.has_value());
        EXPECT_EQ(in->error->kind(), ErrorKind::kMismatch);
        EXPECT_THAT(in->text(), HasSubstr(fmt::format("sent {} bytes, ", sent)));
        EXPECT_THAT(in->text(), HasSubstr(fmt::format("expects {}", expected)));
        EXPECT_TRUE(out->good()) << out->text();
        ranks.settle();
        EXPECT_EQ(ranks.held(0), 0U);
        EXPECT_EQ(support::group_works(ranks), "");
      }
    }
  }
}

}  // namespace
}  // namespace gtopk
