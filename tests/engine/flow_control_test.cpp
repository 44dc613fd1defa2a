// Engine: how many bytes of messages without a receive may lie at a receiver, and their order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/engine/point_to_point.hpp"
#include "tests/engine/flow_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using engine::FlowControl;
using support::InprocRanks;
using support::SharedEnding;
using support::uneven_network;
using ::testing::HasSubstr;
using transport::TagKind;

TEST(FlowControl, OnlyAWindowOfUnmatchedBytesLeavesTheSender) {
  for (const std::size_t bytes : {0UL, 8UL, 4096UL, engine::kShortPayloadBytes, 20'000UL}) {
    for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
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

TEST(FlowControl, FirstMessageLongerThanWindow_RunsAheadAlone) {
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
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
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

TEST(FlowControl, HeldMessagesThatFit_FollowWithoutClearance) {
  FlowRanks ranks(2, 3);
  constexpr std::size_t kMessages = 400;
  Messages messages(kMessages, 1000);
  messages.send_all(ranks, 0, 1);
  ranks.run_for(std::chrono::milliseconds(5));
  EXPECT_GT(ranks.held(0), kMessages / 2);
  for (reference::Bytes& buffer : messages.received) {
    messages.receives.push_back(ranks.submit(1, gtopk::recv(buffer, 0, kTag)));
    ranks.run_until([&] { return messages.receives.back()->ended; });
  }
  ranks.run_all();
  messages.expect_arrived();
  EXPECT_LE(ranks.messages(1, TagKind::kControl), kMessages / 8);
}

TEST(FlowControl, MessagesOfOneTagKeepTheirOrderWhateverIsHeld) {
  for (std::uint64_t seed = 0; seed < support::seeds(40); ++seed) {
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
        reference::Bytes& buffer = messages.received[received++];
        messages.receives.push_back(ranks.submit(1, gtopk::recv(buffer, 0, kTag)));
      }
      ranks.run_for(std::chrono::microseconds(ranks.fabric().pick(100)));
    }
    for (; received < sizes.size(); ++received) {
      reference::Bytes& buffer = messages.received[received];
      messages.receives.push_back(ranks.submit(1, gtopk::recv(buffer, 0, kTag)));
    }
    ranks.run_all();
    messages.expect_arrived();
    EXPECT_TRUE(ranks.close().empty());
  }
}

// Also where each rank sends more than a window before it receives, and begins with the last.
TEST(FlowControl, AFullWindowDelaysNoOtherTagAndNoCollective) {
  for (std::uint64_t seed = 0; seed < support::seeds(24); ++seed) {
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
      reference::Bytes buffer(4096);
      std::uint32_t from = 0;
      const SharedEnding in = ranks.submit(0, gtopk::recv_any(buffer, kTag, from));
      ranks.run_until([&] { return in->ended; });
      ASSERT_TRUE(in->good()) << in->text();
      ASSERT_TRUE(buffer == messages[from - 1].sent[next[from]++]);
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
