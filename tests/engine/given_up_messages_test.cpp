// Engine: messages that their sender, or the receive that has matched them, gives up on the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "tests/engine/flow_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::SharedEnding;
using support::uneven_network;
using transport::TagKind;

constexpr auto kBrief = std::chrono::milliseconds(500);

/// Whose messages are all asked for, headers included.
transport::inproc::FabricOptions asks_for_all(std::uint64_t seed) {
  auto options = uneven_network(seed);
  options.eager_below = 0;
  return options;
}

/// A receive on rank 1 matches the first message, and times out before it has come, as rank 0 is
/// stopped meanwhile.
void give_up_the_first(FlowRanks& ranks, reference::Bytes& buffer) {
  ranks.run_for(std::chrono::milliseconds(5));
  ranks.freeze(0);
  const SharedEnding in = receive_with_tag(ranks, buffer, kTag, kBrief);
  ranks.run_until([&] { return in->ended; });
  ASSERT_TRUE(in->error.has_value());
  EXPECT_EQ(in->error->kind(), ErrorKind::kTimeout) << in->text();
}

TEST(GivenUpMessages, OfAReceiveThatTimesOutGoToThoseThatFollow) {
  for (const std::size_t bytes : {0U, 100U, 8160U, 9000U}) {
    for (const std::uint64_t window : {std::uint64_t{0}, kWindow}) {
      for (const bool waits : {false, true}) {
        for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
          SCOPED_TRACE(
              fmt::format("{} bytes, window {}, waits {}, seed {}", bytes, window, waits, seed));
          FlowRanks ranks(2, asks_for_all(seed), window);
          ASSERT_EQ(support::group_works(ranks), "");
          Messages messages(3, bytes);
          messages.send_all(ranks, 0, 1);
          reference::Bytes buffer(bytes, std::byte{0xEE});
          give_up_the_first(ranks, buffer);
          if (!waits) {
            ranks.thaw(0);
            ranks.run_for(std::chrono::milliseconds(5));
          }
          messages.receive_all(ranks, 0, 1);
          ranks.thaw(0);
          ranks.run_all();
          messages.expect_arrived();
          EXPECT_TRUE(buffer == reference::Bytes(bytes, std::byte{0xEE})) << "it is its caller's";
          ranks.settle();
          EXPECT_EQ(ranks.unreturned(0, 1), 0U);
          EXPECT_EQ(ranks.held(0), 0U);
          EXPECT_TRUE(ranks.close().empty());
        }
      }
    }
  }
}

TEST(GivenUpMessages, OfAReceiveThatTimesOutGoToOneFromAnyRank) {
  for (std::uint64_t seed = 0; seed < support::seeds(24); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FlowRanks ranks(2, asks_for_all(seed));
    ASSERT_EQ(support::group_works(ranks), "");
    Messages messages(2, 100);
    messages.send_all(ranks, 0, 1);
    reference::Bytes buffer(100);
    give_up_the_first(ranks, buffer);
    std::vector<std::uint32_t> from(2, 9);
    for (std::size_t i = 0; i < 2; ++i) {
      messages.receives.push_back(
          ranks.submit(1, gtopk::recv_any(messages.received[i], kTag, from[i])));
    }
    ranks.thaw(0);
    ranks.run_all();
    messages.expect_arrived();
    EXPECT_EQ(from, (std::vector<std::uint32_t>{0, 0}));
    ranks.settle();
    EXPECT_EQ(ranks.unreturned(0, 1), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(GivenUpMessages, TimedOutReceive_SkipsMessageSenderWithdraws) {
  for (std::uint64_t seed = 0; seed < support::seeds(24); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FlowRanks ranks(2, asks_for_all(seed));
    ASSERT_EQ(support::group_works(ranks), "");
    const reference::Bytes lost(9000, std::byte{1});
    const reference::Bytes data(9000, std::byte{2});
    const SharedEnding given_up = send_with_tag(ranks, lost, kTag, std::chrono::seconds(5));
    reference::Bytes buffer(9000);
    give_up_the_first(ranks, buffer);
    ranks.thaw(0);
    ranks.run_until([&] { return given_up->ended; });
    EXPECT_EQ(given_up->error->kind(), ErrorKind::kTimeout) << given_up->text();
    ranks.run_for(std::chrono::milliseconds(5));
    const SharedEnding out = send_with_tag(ranks, data, kTag);
    const SharedEnding in = receive_with_tag(ranks, buffer, kTag);
    ranks.run_all();
    EXPECT_TRUE(out->good() && in->good()) << in->text();
    EXPECT_TRUE(buffer == data);
    ranks.settle();
    EXPECT_EQ(ranks.unreturned(0, 1), 0U);
    EXPECT_TRUE(ranks.group(1)->withdrawn.empty());
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(GivenUpMessages, ThatDoNotFitAreReturned) {
  FlowRanks ranks(2, asks_for_all(3));
  ASSERT_EQ(support::group_works(ranks), "");
  Messages messages(2, 100);
  messages.send_all(ranks, 0, 1);
  reference::Bytes buffer(10);
  give_up_the_first(ranks, buffer);
  ranks.thaw(0);
  const SharedEnding in = receive_with_tag(ranks, messages.received[1], kTag);
  ranks.run_all();
  EXPECT_TRUE(in->good()) << in->text();
  EXPECT_TRUE(messages.received[1] == messages.sent[1]);
  for (const SharedEnding& ending : messages.sends) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  ranks.settle();
  EXPECT_EQ(ranks.unreturned(0, 1), 0U);
  EXPECT_TRUE(ranks.close().empty());
}

/// Until rank 0 hears from it, what it has sent to rank 1 may never be read.
void delay_answers(FlowRanks& ranks) {
  ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    if (sent.source == 1 && transport::kind_of(sent.tag) == TagKind::kControl) {
      fault.delay = std::chrono::seconds(6);  // longer than a probe waits
    }
    return fault;
  });
}

TEST(GivenUpMessages, ThatWereReceivedBeforeAreForgotten) {
  for (const bool another_lies_there : {false, true}) {
    for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
      SCOPED_TRACE(fmt::format("seed {}, another {}", seed, another_lies_there));
      auto options = uneven_network(seed);
      options.eager_below = 1024;
      FlowRanks ranks(2, options);
      delay_answers(ranks);
      Messages messages(another_lies_there ? 3 : 2, 100);
      std::vector<SharedEnding> given_up;
      for (std::size_t i = 0; i < 2; ++i) {
        given_up.push_back(send_with_tag(ranks, messages.sent[i], kTag, kBrief));
        const SharedEnding in = receive_with_tag(ranks, messages.received[i], kTag);
        ranks.run_until([&] { return in->ended; });
        EXPECT_TRUE(in->good()) << in->text();
      }
      if (another_lies_there) {
        messages.sends.push_back(ranks.submit(0, gtopk::send(messages.sent[2], 1, kTag)));
      }
      for (const SharedEnding& ending : given_up) {
        ranks.run_until([&] { return ending->ended; });
        EXPECT_EQ(ending->error->kind(), ErrorKind::kTimeout) << ending->text();
      }
      ranks.run_for(std::chrono::milliseconds(5));  // the receiver hears of it
      EXPECT_TRUE(another_lies_there || ranks.group(1)->withdrawn.empty());
      if (another_lies_there) {
        messages.receives.push_back(receive_with_tag(ranks, messages.received[2], kTag));
      }
      ranks.run_all();
      messages.expect_arrived();
      EXPECT_TRUE(ranks.group(1)->withdrawn.empty());
      ranks.settle();
      EXPECT_EQ(ranks.unreturned(0, 1), 0U);
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

TEST(GivenUpMessages, ReceiveTimeouts_NeitherReorderNorDuplicate) {
  constexpr std::size_t kMessages = 5;
  std::size_t timeouts = 0;
  for (std::uint64_t seed = 0; seed < support::seeds(200); ++seed) {
    const std::uint32_t to = seed % 5 == 0 ? 0 : 1;  // itself, too
    const std::size_t bytes = seed % 2 == 0 ? 3000 : 9000;
    const std::uint64_t window = seed % 3 == 0 ? 6000 : kWindow;
    const bool in_one = bytes == 3000 && window == kWindow;  // a payload apart may be lost
    SCOPED_TRACE(fmt::format("seed {}: {} bytes to {}, window {}", seed, bytes, to, window));
    auto options = support::network(seed, std::chrono::milliseconds(3));
    options.eager_below = std::min<std::size_t>(options.eager_below, 1024);
    FlowRanks ranks(2, options, window);
    const Messages messages(kMessages, bytes);
    std::deque<reference::Bytes> buffers;  // into which messages may come even later
    std::vector<std::size_t> received;
    const auto receive = [&](transport::Duration timeout) {
      reference::Bytes& buffer = buffers.emplace_back(bytes);
      engine::OperationSpec spec(gtopk::recv(buffer, 0, kTag));
      spec.timeout = timeout;
      const SharedEnding in = ranks.submit(to, std::move(spec));
      ranks.run_until([&] { return in->ended; });
      if (in->good()) {
        received.push_back(static_cast<std::size_t>(buffer.front()));
        EXPECT_TRUE(buffer == messages.sent.at(received.back()));
      } else {
        EXPECT_EQ(in->error->kind(), ErrorKind::kTimeout) << in->text();
        ++timeouts;
      }
    };
    std::vector<SharedEnding> sends;
    for (const reference::Bytes& data : messages.sent) {
      sends.push_back(ranks.submit(0, gtopk::send(data, to, kTag)));
      ranks.run_for(std::chrono::microseconds(ranks.fabric().pick(3000)));
      receive(std::chrono::microseconds(1 + ranks.fabric().pick(4000)));
    }
    for (int attempt = 0; attempt < 20 && received.size() < kMessages; ++attempt) {
      receive(std::chrono::microseconds(1 + ranks.fabric().pick(6000)));
    }
    ranks.run_all();
    for (const SharedEnding& ending : sends) {
      EXPECT_TRUE(ending->good()) << ending->text();
    }
    EXPECT_EQ(std::ranges::adjacent_find(received, std::ranges::greater_equal()), received.end());
    EXPECT_TRUE(!in_one || received.size() == kMessages) << received.size();
    ranks.settle();
    EXPECT_EQ(ranks.unreturned(0, to), 0U);
    EXPECT_EQ(ranks.held(0), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
  EXPECT_GT(timeouts, 100U);
}

}  // namespace
}  // namespace gtopk
