// Engine: receives from whichever rank sends first: each message once, in the order of the calls,
// beside receives that name their sender, and when no sender is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "src/engine/point_to_point.hpp"
#include "tests/engine/messages.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using support::uneven_network;
using ::testing::HasSubstr;

constexpr std::uint32_t kNobody = 99;

void expect_good(const std::vector<SharedEnding>& endings) {
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
}

/// Message `number` of a rank.
reference::Bytes message(std::uint32_t from, std::size_t number, std::size_t bytes) {
  reference::Bytes made(bytes, static_cast<std::byte>(from));
  made[0] = static_cast<std::byte>(number);
  return made;
}

TEST(AnySource, Receives_TakeEachMessageOnceAndInSenderOrder) {
  constexpr std::uint32_t kRanks = 4;
  constexpr std::size_t kEach = 6;
  for (std::uint64_t seed = 0; seed < support::seeds(40); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const std::size_t bytes = seed % 2 == 0 ? 40 : kLong;
    InprocRanks ranks(kRanks, uneven_network(seed));
    std::vector<reference::Bytes> sent;
    std::vector<reference::Bytes> buffers(kRanks * kEach, reference::Bytes(bytes));
    std::vector<std::uint32_t> from(buffers.size(), kNobody);
    std::vector<SharedEnding> endings;
    const auto receive = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        endings.push_back(ranks.submit(0, gtopk::recv_any(buffers[i], kTag, from[i])));
      }
    };
    sent.reserve(buffers.size());
    receive(0, 5);
    for (std::size_t number = 0; number < kEach; ++number) {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {  // rank 0 sends to itself
        sent.push_back(message(rank, number, bytes));
        endings.push_back(ranks.submit(rank, gtopk::send(sent.back(), 0, kTag)));
      }
      ranks.run_for(std::chrono::microseconds(ranks.fabric().pick(200)));
    }
    receive(5, buffers.size());
    ranks.run_all();
    expect_good(endings);
    std::vector<std::size_t> next(kRanks);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      ASSERT_LT(from[i], kRanks);
      ASSERT_TRUE(buffers[i] == message(from[i], next[from[i]]++, bytes)) << "receive " << i;
    }
    EXPECT_EQ(next, std::vector<std::size_t>(kRanks, kEach));
    EXPECT_EQ(ranks.group(0)->receive_lines.size(), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(AnySource, LeavesToAReceiveThatNamesItsSenderWhatThatWaitsFor) {
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    InprocRanks ranks(3, uneven_network(seed));
    const reference::Bytes one = message(1, 0, kLong);
    const reference::Bytes two = message(2, 0, kLong);
    const reference::Bytes other_tag = message(1, 1, kLong);
    reference::Bytes of_one(kLong);
    reference::Bytes of_any(kLong);
    reference::Bytes of_other_tag(kLong);
    std::uint32_t from = kNobody;
    std::vector<SharedEnding> endings = {
        ranks.submit(0, gtopk::recv_any(of_any, kTag, from)),
        ranks.submit(0, gtopk::recv(of_one, 1, kTag)),
    };
    ranks.run_for(std::chrono::milliseconds(5));
    endings.push_back(ranks.submit(1, gtopk::send(other_tag, 0, kTag + 1)));
    endings.push_back(ranks.submit(1, gtopk::send(one, 0, kTag)));
    ranks.run_for(std::chrono::milliseconds(5));
    EXPECT_EQ(from, kNobody);
    endings.push_back(ranks.submit(2, gtopk::send(two, 0, kTag)));
    endings.push_back(ranks.submit(0, gtopk::recv(of_other_tag, 1, kTag + 1)));
    ranks.run_all();
    expect_good(endings);
    EXPECT_EQ(from, 2U);
    EXPECT_TRUE(of_any == two && of_one == one && of_other_tag == other_tag);
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(AnySource, PassesOverWhatItsSenderGaveUp) {
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = std::min<std::size_t>(options.eager_below, 1024);
    InprocRanks ranks(3, options);
    const reference::Bytes given_up(kLong);
    engine::OperationSpec spec = gtopk::send(given_up, 0, kTag);
    spec.timeout = std::chrono::seconds(1);
    const SharedEnding lost = ranks.submit(1, std::move(spec));
    ranks.run_until([&] { return lost->ended; });
    ASSERT_EQ(lost->error->kind(), ErrorKind::kTimeout) << lost->text();
    ranks.run_for(std::chrono::milliseconds(5));
    reference::Bytes buffer(kLong);
    std::uint32_t from = kNobody;
    const reference::Bytes sent = message(2, 0, kLong);
    const SharedEnding in = ranks.submit(0, gtopk::recv_any(buffer, kTag, from));
    ranks.run_for(std::chrono::milliseconds(5));
    const SharedEnding out = ranks.submit(2, gtopk::send(sent, 0, kTag));
    ranks.run_all();
    expect_good({out, in});
    EXPECT_EQ(from, 2U);
    EXPECT_TRUE(buffer == sent);
  }
}

TEST(AnySource, OfAnotherSizeNamesBothSides) {
  InprocRanks ranks(3);
  const reference::Bytes sent(10);
  reference::Bytes buffer(20);
  std::uint32_t from = kNobody;
  const SharedEnding out = ranks.submit(2, gtopk::send(sent, 0, kTag));
  const SharedEnding in = ranks.submit(0, gtopk::recv_any(buffer, kTag, from));
  ranks.run_all();
  EXPECT_TRUE(out->good()) << out->text();
  ASSERT_TRUE(in->error.has_value());
  EXPECT_EQ(in->error->kind(), ErrorKind::kMismatch);
  EXPECT_THAT(in->text(), HasSubstr("rank 2"));
  EXPECT_THAT(in->text(), HasSubstr("sent 10 bytes"));
  EXPECT_EQ(support::group_works(ranks), "");
}

TEST(AnySource, ThatNobodyServesEndsInTimeAndTheGroupWorksOn) {
  InprocRanks ranks(3);
  reference::Bytes buffer(20);
  std::uint32_t from = kNobody;
  engine::OperationSpec spec = gtopk::recv_any(buffer, kTag, from);
  spec.timeout = std::chrono::seconds(1);
  const SharedEnding in = ranks.submit(0, std::move(spec));
  ranks.run_all();
  ASSERT_TRUE(in->error.has_value());
  EXPECT_EQ(in->error->kind(), ErrorKind::kTimeout);
  EXPECT_THAT(in->text(), HasSubstr("recv(from any rank, tag 7) of group 'default' on rank 0"));
  EXPECT_THAT(in->text(), HasSubstr("no rank has sent a matching message"));
  EXPECT_EQ(support::group_works(ranks), "");
  EXPECT_TRUE(ranks.close().empty());
}

TEST(AnySource, EndsWhenAllOthersHaveLeft) {
  InprocRanks ranks(3);
  ASSERT_EQ(support::group_works(ranks), "");  // ranks that never talked say no goodbye
  reference::Bytes buffer(20);
  std::uint32_t from = kNobody;
  const SharedEnding in = ranks.submit(0, gtopk::recv_any(buffer, kTag, from));
  ranks.leave(1);
  ranks.run_for(std::chrono::milliseconds(5));
  ASSERT_FALSE(in->ended);
  ranks.leave(2);
  ranks.run_all();
  ASSERT_TRUE(in->error.has_value());
  EXPECT_EQ(in->error->kind(), ErrorKind::kPeerFailed);
  EXPECT_THAT(in->text(), HasSubstr("every other rank of the group has left"));
  EXPECT_LT(ranks.now().time_since_epoch(), InprocRanks::kTimeout);
}

}  // namespace
}  // namespace gtopk
