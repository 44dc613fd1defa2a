// Engine: messages that run ahead of their receives: how many bytes of them may lie at a receiver,
// and what becomes of those that are held in their sender's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/engine/flow_control.hpp"
#include "src/engine/point_to_point.hpp"
#include "tests/engine/messages.hpp"
#include "tests/support/calls.hpp"

namespace gtopk {
namespace {

using engine::FlowControl;
using support::InprocRanks;
using support::SharedEnding;
using support::uneven_network;
using ::testing::HasSubstr;
using transport::TagKind;

constexpr std::uint64_t kWindow = 64UL << 10U;

/// Ranks with a small window.
class FlowRanks : public InprocRanks {
 public:
  FlowRanks(std::uint32_t ranks, std::uint64_t seed, std::uint64_t window = kWindow)
      : FlowRanks(ranks, uneven_network(seed), window) {}
  FlowRanks(std::uint32_t ranks, FabricOptions options, std::uint64_t window = kWindow)
      : InprocRanks(ranks, options) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      engine(rank).flow_control().set_window(window);
    }
  }

  [[nodiscard]] std::size_t held(std::uint32_t rank) { return engine(rank).flow_control().held(); }
  [[nodiscard]] std::uint64_t ahead(std::uint32_t from, std::uint32_t to) const {
    return group(from)->credits[to].ahead;
  }
  [[nodiscard]] std::uint64_t messages(std::uint32_t rank, TagKind kind) {
    return fabric().counters(rank).of(kind).messages_sent;
  }
  /// Bytes of point-to-point messages that the rank has sent.
  [[nodiscard]] std::uint64_t sent_bytes(std::uint32_t rank) {
    const auto& counters = fabric().counters(rank);
    return counters.of(TagKind::kPointToPoint).bytes_sent +
           counters.of(TagKind::kPayload).bytes_sent;
  }
};

/// Messages of various sizes with the same first bytes nowhere, and room for them elsewhere.
struct Messages {
  explicit Messages(const std::vector<std::size_t>& sizes) {
    for (const std::size_t bytes : sizes) {
      const auto number = static_cast<std::byte>(sent.size() % 251);
      received.emplace_back(bytes);
      sent.emplace_back(bytes, number);
    }
  }
  Messages(std::size_t count, std::size_t bytes)
      : Messages(std::vector<std::size_t>(count, bytes)) {}

  void send_all(InprocRanks& ranks, std::uint32_t from, std::uint32_t to, std::int32_t tag = kTag) {
    for (const reference::Bytes& message : sent) {
      sends.push_back(ranks.submit(from, gtopk::send(message, to, tag)));
    }
  }
  void receive_all(InprocRanks& ranks, std::uint32_t from, std::uint32_t to,
                   std::int32_t tag = kTag) {
    for (reference::Bytes& room : received) {
      receives.push_back(ranks.submit(to, gtopk::recv(room, from, tag)));
    }
  }
  void expect_arrived() const {
    for (const auto* endings : {&sends, &receives}) {
      for (const SharedEnding& ending : *endings) {
        ASSERT_TRUE(ending->good()) << ending->text();
      }
    }
    EXPECT_TRUE(sent == received);
  }
  [[nodiscard]] bool all_received() const {
    return std::ranges::all_of(receives, [](const SharedEnding& ending) { return ending->ended; });
  }
  [[nodiscard]] std::size_t sends_ended() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(sends, [](const SharedEnding& ending) { return ending->ended; }));
  }

  std::vector<reference::Bytes> sent;
  std::vector<reference::Bytes> received;
  std::vector<SharedEnding> sends;
  std::vector<SharedEnding> receives;
};

/// More of them than fit into a window.
constexpr std::size_t many_of(std::size_t bytes) {
  return 4 * kWindow / (FlowControl::kPerMessage + bytes) + 3;
}

TEST(FlowControl, OnlyAWindowOfUnmatchedBytesLeavesTheSender) {
  for (const std::size_t bytes : {0UL, 8UL, 4096UL, engine::kShortPayloadBytes, 20'000UL}) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(fmt::format("{} bytes, seed {}", bytes, seed));
      FlowRanks ranks(2, seed);
      const std::size_t count = many_of(bytes);
      const std::size_t fit = kWindow / (FlowControl::kPerMessage + bytes);
      Messages messages(count, bytes);
      messages.send_all(ranks, 0, 1);
      ranks.run_for(std::chrono::milliseconds(20));
      EXPECT_EQ(ranks.held(0), count - fit);
      EXPECT_EQ(ranks.sent_bytes(0), count * engine::kTransferHeaderBytes + fit * bytes);
      EXPECT_LE(ranks.ahead(0, 1), kWindow);
      EXPECT_EQ(ranks.messages(1, TagKind::kControl), 1U);  // hello

      messages.receive_all(ranks, 0, 1);
      ranks.run_all();
      messages.expect_arrived();
      ranks.settle();
      EXPECT_EQ(ranks.held(0), 0U);
      EXPECT_LT(ranks.ahead(0, 1), kWindow / 2);  // and is told of no later than with the next ones
      EXPECT_EQ(ranks.engine(0).under_way(), 0U);
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

TEST(FlowControl, ShortMessagesWithinTheWindowEndWithoutAReceive) {
  FlowRanks ranks(2, 3);  // sends everything eagerly
  const std::size_t fit = kWindow / (FlowControl::kPerMessage + 4096);
  Messages messages(fit + 5, 4096);
  messages.send_all(ranks, 0, 1);
  ranks.run_for(std::chrono::milliseconds(20));
  EXPECT_EQ(messages.sends_ended(), fit);
  messages.receive_all(ranks, 0, 1);
  ranks.run_all();
  messages.expect_arrived();
}

TEST(FlowControl, OneMessageOfAnyLengthRunsAheadWhereNothingElseDoes) {
  FlowRanks ranks(2, 3);
  Messages messages(2, 10 * kWindow);
  messages.send_all(ranks, 0, 1);
  ranks.run_for(std::chrono::milliseconds(5));
  EXPECT_EQ(ranks.held(0), 1U);
  EXPECT_EQ(messages.sends_ended(), 1U);
  messages.receive_all(ranks, 0, 1);
  ranks.run_all();
  messages.expect_arrived();
  ranks.settle();
  EXPECT_EQ(ranks.ahead(0, 1), 0U);
}

TEST(FlowControl, AWindowOfNothingHoldsEveryMessage) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    FlowRanks ranks(2, uneven_network(seed), 0);
    Messages messages({0, 1, 5000, kLong});
    messages.send_all(ranks, 0, 1);
    ranks.run_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ranks.held(0), 4U);
    messages.receive_all(ranks, 0, 1);
    ranks.run_all();
    messages.expect_arrived();
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(FlowControl, CreditTravelsOncePerHalfWindowAndNothingElseDoes) {
  constexpr std::size_t kBytes = 1000;
  constexpr std::size_t kMessages = 500;
  FlowRanks ranks(2, 3);
  for (std::size_t number = 0; number < kMessages; ++number) {
    Messages ping(1, kBytes);
    ping.receive_all(ranks, 0, 1);
    ping.send_all(ranks, 0, 1);
    ranks.run_all();
    ping.expect_arrived();
  }
  ranks.settle();
  const std::size_t per_notice = kWindow / 2 / (FlowControl::kPerMessage + kBytes) + 1;
  EXPECT_EQ(ranks.messages(1, TagKind::kControl), 1 + kMessages / per_notice);
  EXPECT_EQ(ranks.messages(0, TagKind::kControl), 1U);  // hello
  EXPECT_EQ(ranks.messages(0, TagKind::kPointToPoint), kMessages);
  EXPECT_EQ(ranks.messages(0, TagKind::kPayload), 0U);
}

TEST(FlowControl, OneNoticeClearsManyMessages) {
  FlowRanks ranks(2, 3, 0);
  constexpr std::size_t kMessages = 500;
  Messages messages(kMessages, 100);
  messages.send_all(ranks, 0, 1);
  ranks.run_for(std::chrono::milliseconds(5));
  messages.receive_all(ranks, 0, 1);
  ranks.run_all();
  messages.expect_arrived();
  EXPECT_LE(ranks.messages(1, TagKind::kControl), kMessages / 20);
}

TEST(FlowControl, HeldMessagesFollowWithoutClearanceAsSoonAsTheyFit) {
  FlowRanks ranks(2, 3);
  constexpr std::size_t kMessages = 400;
  Messages messages(kMessages, 1000);
  messages.send_all(ranks, 0, 1);
  ranks.run_for(std::chrono::milliseconds(5));
  EXPECT_GT(ranks.held(0), kMessages / 2);
  for (reference::Bytes& room : messages.received) {
    messages.receives.push_back(ranks.submit(1, gtopk::recv(room, 0, kTag)));
    ranks.run_until([&] { return messages.receives.back()->ended; });
  }
  ranks.run_all();
  messages.expect_arrived();
  EXPECT_LE(ranks.messages(1, TagKind::kControl), kMessages / 8);
}

TEST(FlowControl, MessagesOfOneTagKeepTheirOrderWhateverIsHeld) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FlowRanks ranks(2, seed);
    std::vector<std::size_t> sizes;
    for (std::size_t number = 0; number < 60; ++number) {
      static constexpr std::array<std::size_t, 6> kSizes = {0, 10, 3000, 8160, 8161, 50'000};
      sizes.push_back(kSizes.at(ranks.fabric().pick(kSizes.size())));
    }
    Messages messages(sizes);
    std::size_t received = 0;
    for (std::size_t number = 0; number < sizes.size(); ++number) {
      messages.sends.push_back(ranks.submit(0, gtopk::send(messages.sent[number], 1, kTag)));
      while (received < number && ranks.fabric().pick(3) == 0) {
        reference::Bytes& room = messages.received[received++];
        messages.receives.push_back(ranks.submit(1, gtopk::recv(room, 0, kTag)));
      }
      ranks.run_for(std::chrono::microseconds(ranks.fabric().pick(100)));
    }
    for (; received < sizes.size(); ++received) {
      reference::Bytes& room = messages.received[received];
      messages.receives.push_back(ranks.submit(1, gtopk::recv(room, 0, kTag)));
    }
    ranks.run_all();
    messages.expect_arrived();
    EXPECT_TRUE(ranks.close().empty());
  }
}

// Also where each rank sends more than a window before it receives, and begins with the last.
TEST(FlowControl, AFullWindowDelaysNoOtherTagAndNoCollective) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FlowRanks ranks(2, seed);
    constexpr std::int32_t kTags = 40;
    std::vector<Messages> there;
    std::vector<Messages> back;
    for (std::int32_t tag = 0; tag < kTags; ++tag) {
      there.emplace_back(2, 8000).send_all(ranks, 0, 1, tag);
      back.emplace_back(1, 30'000).send_all(ranks, 1, 0, tag);
    }
    const SharedEnding barriers[] = {ranks.submit(0, gtopk::barrier()),
                                     ranks.submit(1, gtopk::barrier())};
    ranks.run_until([&] { return barriers[0]->ended && barriers[1]->ended; });
    ASSERT_TRUE(barriers[0]->good() && barriers[1]->good()) << barriers[0]->text();
    EXPECT_GT(ranks.held(0), 0U);
    EXPECT_GT(ranks.held(1), 0U);
    for (std::int32_t tag = kTags - 1; tag >= 0; --tag) {
      Messages& one = there[static_cast<std::size_t>(tag)];
      Messages& other = back[static_cast<std::size_t>(tag)];
      one.receive_all(ranks, 0, 1, tag);
      other.receive_all(ranks, 1, 0, tag);
      ranks.run_until([&] { return one.all_received() && other.all_received(); });
    }
    ranks.run_all();
    for (std::int32_t tag = 0; tag < kTags; ++tag) {
      there[static_cast<std::size_t>(tag)].expect_arrived();
      back[static_cast<std::size_t>(tag)].expect_arrived();
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(FlowControl, ARankSendsItselfMoreThanAWindow) {
  for (const std::size_t bytes : {100UL, 4096UL, 20'000UL}) {
    FlowRanks ranks(2, 1);
    Messages messages(many_of(bytes), bytes);
    messages.send_all(ranks, 0, 0);
    ranks.run_for(std::chrono::milliseconds(5));
    EXPECT_GT(ranks.held(0), 0U);
    messages.receive_all(ranks, 0, 0);
    ranks.run_all();
    messages.expect_arrived();
    ranks.settle();
    EXPECT_LT(ranks.ahead(0, 0), kWindow / 2);
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(FlowControl, SevenRanksFloodOneThatReceivesFromAny) {
  constexpr std::uint32_t kRanks = 8;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FlowRanks ranks(kRanks, uneven_network(seed), kWindow / 8);
    const std::size_t each = many_of(4096) / 4;
    std::vector<Messages> messages;
    for (std::uint32_t rank = 1; rank < kRanks; ++rank) {
      messages.emplace_back(each, 4096).send_all(ranks, rank, 0);
    }
    ranks.run_for(std::chrono::milliseconds(20));
    std::vector<std::size_t> next(kRanks);
    for (std::size_t number = 0; number < each * (kRanks - 1); ++number) {
      reference::Bytes room(4096);
      std::uint32_t from = 0;
      const SharedEnding in = ranks.submit(0, gtopk::recv_any(room, kTag, from));
      ranks.run_until([&] { return in->ended; });
      ASSERT_TRUE(in->good()) << in->text();
      ASSERT_TRUE(room == messages[from - 1].sent[next[from]++]);
    }
    ranks.run_all();
    for (const Messages& of_rank : messages) {
      for (const SharedEnding& ending : of_rank.sends) {
        EXPECT_TRUE(ending->good()) << ending->text();
      }
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

SharedEnding send_briefly(InprocRanks& ranks, const reference::Bytes& data,
                          transport::Duration timeout = std::chrono::milliseconds(500)) {
  engine::OperationSpec spec(gtopk::send(data, 1, kTag));
  spec.timeout = timeout;
  return ranks.submit(0, std::move(spec));
}

TEST(FlowControl, AHeldMessageThatTimesOutLeavesAtOnceAndIsSkipped) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
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
    EXPECT_THAT(lost->text(), HasSubstr("is alive and has no match"));
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

TEST(FlowControl, MessagesThatTimeOutTogetherAskTheirReceiverOnce) {
  FlowRanks ranks(2, 3, 0);
  constexpr std::size_t kMessages = 100;
  const reference::Bytes data(3000);
  std::vector<SharedEnding> lost;
  for (std::size_t number = 0; number < kMessages; ++number) {
    lost.push_back(send_briefly(ranks, data));
  }
  ranks.run_all();
  for (const SharedEnding& ending : lost) {
    EXPECT_THAT(ending->text(), HasSubstr("is alive and has no match"));
  }
  ranks.settle();
  // And each message is withdrawn.
  EXPECT_LE(ranks.messages(0, TagKind::kControl), kMessages + 3);
  EXPECT_LE(ranks.messages(1, TagKind::kControl), kMessages + 3);
  EXPECT_EQ(ranks.held(0), 0U);
}

TEST(FlowControl, AHeldMessageThatTimesOutWhileItIsClearedArrivesOrIsSkipped) {
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
    reference::Bytes room(3000);
    ranks.run_for(std::chrono::milliseconds(1 + ranks.fabric().pick(20)));
    first.receive_all(ranks, 0, 1);
    const SharedEnding in = ranks.submit(1, gtopk::recv(room, 0, kTag));
    ranks.run_until([&] { return lost->ended; });
    const SharedEnding out = ranks.submit(0, gtopk::send(next, 1, kTag));
    ranks.run_until([&] { return in->ended; });
    ASSERT_TRUE(in->good()) << in->text();
    const bool whole = room == given_up;
    ASSERT_TRUE(whole || room == next);
    EXPECT_TRUE(whole || !lost->good());
    lost->ignore("a message that is received whole may have been given up or not");
    arrived += whole ? 1 : 0;
    if (whole) {
      const SharedEnding again = ranks.submit(1, gtopk::recv(room, 0, kTag));
      ranks.run_all();
      ASSERT_TRUE(again->good()) << again->text();
      EXPECT_TRUE(room == next);
    }
    ranks.run_all();
    EXPECT_TRUE(out->good()) << out->text();
    first.expect_arrived();
    ranks.settle();
    EXPECT_EQ(ranks.held(0), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
  EXPECT_GT(arrived, 0U);
  EXPECT_LT(arrived, kSeeds);
}

TEST(FlowControl, AHeldMessageToADeadRankFailsWithItsGroup) {
  for (const auto death : {transport::inproc::Death::kNoticed, transport::inproc::Death::kSilent}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
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

TEST(FlowControl, AHeldMessageToARankThatLeavesFailsAtOnceAndSaysSo) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
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

TEST(FlowControl, AHeldMessageEndsWithItsGroup) {
  for (const std::uint32_t aborts : {0U, 1U}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
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
TEST(FlowControl, AHeldMessageToAGroupThatItsReceiverHasDestroyedTimesOutAndLeaves) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
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

TEST(FlowControl, AHeldMessageThatDoesNotFitIsAnErrorAndLetsItsSenderGo) {
  for (const auto& [sent, expected] : {std::pair{100UL, 10UL}, std::pair{10UL, 100UL},
                                       std::pair{9000UL, 10UL}, std::pair{10UL, 9000UL}}) {
    for (const std::uint64_t window : {std::uint64_t{0}, kWindow}) {
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        SCOPED_TRACE(
            fmt::format("{} to {} bytes, window {}, seed {}", sent, expected, window, seed));
        FlowRanks ranks(2, uneven_network(seed), window);
        const reference::Bytes data(sent);
        reference::Bytes room(expected);
        const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
        const SharedEnding in = ranks.submit(1, gtopk::recv(room, 0, kTag));
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

// Receives that wait behind each other hold no buffers, those that do have small ones.
TEST(FlowControl, PostedReceivesHoldTheirOwnSizeAtMost) {
  InprocRanks ranks(2);
  Messages same_tag(1000, 8);
  same_tag.receive_all(ranks, 0, 1);
  std::vector<Messages> other_tags;
  for (std::int32_t tag = 1000; tag < 1100; ++tag) {
    other_tags.emplace_back(1, 8).receive_all(ranks, 0, 1, tag);
  }
  ranks.run_for(std::chrono::milliseconds(1));
  EXPECT_LE(ranks.engine(1).pool().taken_bytes(), 101 * 64U);
  same_tag.send_all(ranks, 0, 1);
  for (std::int32_t tag = 1000; tag < 1100; ++tag) {
    other_tags[static_cast<std::size_t>(tag - 1000)].send_all(ranks, 0, 1, tag);
  }
  ranks.run_all();
  same_tag.expect_arrived();
  for (const Messages& messages : other_tags) {
    messages.expect_arrived();
  }
}

/// Sets the variable while it lives.
class WindowInEnvironment {
 public:
  explicit WindowInEnvironment(const char* value) { setenv("GTOPK_SEND_WINDOW", value, 1); }
  WindowInEnvironment(const WindowInEnvironment&) = delete;
  WindowInEnvironment& operator=(const WindowInEnvironment&) = delete;
  WindowInEnvironment(WindowInEnvironment&&) = delete;
  WindowInEnvironment& operator=(WindowInEnvironment&&) = delete;
  ~WindowInEnvironment() { unsetenv("GTOPK_SEND_WINDOW"); }
};

TEST(SendWindow, IsReadFromTheEnvironment) {
  EXPECT_EQ(engine::send_window_of_environment(), FlowControl::kDefaultWindow);
  for (const auto& [text, bytes] :
       {std::pair{"0", std::uint64_t{0}}, std::pair{"65536", std::uint64_t{65536}},
        std::pair{"512K", std::uint64_t{512} << 10U}, std::pair{"3M", std::uint64_t{3} << 20U},
        std::pair{"2G", std::uint64_t{2} << 30U}, std::pair{"1024G", std::uint64_t{1} << 40U}}) {
    const WindowInEnvironment set(text);
    EXPECT_EQ(engine::send_window_of_environment(), bytes) << text;
  }
  for (const char* const text :
       {"", "M", "-1", "12X", "12MB", "1.5M", "1025G", "99999999999999999999", " 1"}) {
    const WindowInEnvironment set(text);
    try {
      static_cast<void>(engine::send_window_of_environment());
      ADD_FAILURE() << "accepts '" << text << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("GTOPK_SEND_WINDOW is '{}'", text)));
    }
  }
}

}  // namespace
}  // namespace gtopk
