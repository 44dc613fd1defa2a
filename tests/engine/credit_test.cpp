// Engine: what a point-to-point message counts in its sender's window is returned exactly once,
// whatever becomes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/engine/flow_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using support::uneven_network;
using transport::TagKind;

/// The window has space for a message of 3000 bytes, but not for a second one.
constexpr std::uint64_t kOneFits = 6000;
/// Of so many bytes, what a rank may hold back before it tells the sender.
constexpr std::uint64_t kUntold = kOneFits / 2;

TEST(Credit, OfAHeldMessageWhoseReceiveGivesUpIsReturned) {
  FlowRanks ranks(2, 3, kOneFits);
  ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    fault.drop = transport::kind_of(sent.tag) == TagKind::kPayload;
    return fault;
  });
  const reference::Bytes data(3000);
  reference::Bytes buffer(3000);
  const SharedEnding ahead = send_with_tag(ranks, data, 1);
  const SharedEnding held = send_with_tag(ranks, data, 2);
  ranks.run_for(std::chrono::milliseconds(5));
  ASSERT_EQ(ranks.held(0), 1U);
  const SharedEnding lost = receive_with_tag(ranks, buffer, 2, std::chrono::seconds(1));
  ranks.run_until([&] { return lost->ended; });
  EXPECT_EQ(lost->error->kind(), ErrorKind::kTimeout) << lost->text();
  const SharedEnding received = receive_with_tag(ranks, buffer, 1);
  ranks.run_all();
  EXPECT_TRUE(received->good() && ahead->good() && held->good()) << received->text();
  ranks.settle();
  EXPECT_LT(ranks.ahead(0, 1), kUntold);
}

TEST(Credit, OfAHeldMessageThatIsSentAndThenGivenUpIsReturned) {
  auto options = uneven_network(0);
  options.eager_below = 1024;  // a payload waits until it is received
  FlowRanks ranks(2, options, kOneFits);
  const reference::Bytes data(3000);
  reference::Bytes buffer(3000);
  const SharedEnding ahead = send_with_tag(ranks, data, 1);
  const SharedEnding given_up = send_with_tag(ranks, data, 2, std::chrono::seconds(1));
  ranks.run_for(std::chrono::milliseconds(5));
  ASSERT_EQ(ranks.held(0), 1U);
  const SharedEnding first = receive_with_tag(ranks, buffer, 1);
  ranks.run_until([&] { return given_up->ended; });
  EXPECT_EQ(ranks.held(0), 0U);
  EXPECT_EQ(given_up->error->kind(), ErrorKind::kTimeout) << given_up->text();
  ranks.run_for(std::chrono::milliseconds(5));  // the receiver hears of it
  const SharedEnding next = send_with_tag(ranks, data, 2);
  const SharedEnding second = receive_with_tag(ranks, buffer, 2);
  ranks.run_all();
  for (const SharedEnding& ending : {ahead, first, next, second}) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  ranks.settle();
  EXPECT_LT(ranks.ahead(0, 1), kUntold);
  EXPECT_TRUE(ranks.close().empty());
}

// Its header still lies there, and counts.
TEST(Credit, OfALongMessageThatIsGivenUpIsReturnedWithoutAReceive) {
  auto options = uneven_network(0);
  options.eager_below = 1024;
  FlowRanks ranks(2, options);
  const reference::Bytes long_data(10 * kWindow);
  const reference::Bytes data(100);
  const SharedEnding given_up = send_with_tag(ranks, long_data, 1, std::chrono::milliseconds(500));
  ranks.run_until([&] { return given_up->ended; });
  EXPECT_EQ(given_up->error->kind(), ErrorKind::kTimeout) << given_up->text();
  ranks.run_for(std::chrono::milliseconds(5));  // the receiver hears of it, and answers
  EXPECT_EQ(ranks.ahead(0, 1), engine::FlowControl::kPerMessage);
  const SharedEnding next = send_with_tag(ranks, data, 2);
  ranks.run_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(next->ended) << "it does not run ahead of its receive";
  EXPECT_TRUE(next->good()) << next->text();

  reference::Bytes long_buffer(long_data.size());
  reference::Bytes buffer(data.size());
  const SharedEnding again = send_with_tag(ranks, long_data, 1);
  const SharedEnding first = receive_with_tag(ranks, long_buffer, 1);
  const SharedEnding second = receive_with_tag(ranks, buffer, 2);
  ranks.run_all();
  EXPECT_TRUE(again->good() && first->good() && second->good()) << first->text();
  ranks.settle();
  EXPECT_LT(ranks.ahead(0, 1), kWindow / 2);
  EXPECT_TRUE(ranks.close().empty());
}

TEST(Credit, OversizedHeldMessage_ReturnsNoCreditBeforeCounted) {
  constexpr std::uint64_t kShortOrOther = 4500;
  FlowRanks ranks(2, 3, kShortOrOther);
  const reference::Bytes few(10);
  const reference::Bytes data(3000);
  reference::Bytes buffer(10);
  const SharedEnding ahead = send_with_tag(ranks, few, 1);
  const SharedEnding held = send_with_tag(ranks, data, 2);
  ranks.run_for(std::chrono::milliseconds(5));
  ASSERT_EQ(ranks.held(0), 1U);
  const SharedEnding too_long = receive_with_tag(ranks, buffer, 2);
  ranks.run_until([&] { return too_long->ended; });
  EXPECT_EQ(too_long->error->kind(), ErrorKind::kMismatch) << too_long->text();
  ranks.settle();
  EXPECT_TRUE(ahead->good() && held->good());
  EXPECT_EQ(ranks.ahead(0, 1), engine::FlowControl::kPerMessage + few.size());
}

// --- The accounts of both sides agree. What receives have matched is neither returned again nor
// --- left out when the sender has given it up meanwhile.

/// Delays every payload to rank 1, and so what is sent after it over the same connection.
void delay_payloads(FlowRanks& ranks, transport::Duration delay) {
  ranks.fabric().set_faults([delay](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    if (transport::kind_of(sent.tag) == TagKind::kPayload) {
      fault.delay = delay;
    }
    return fault;
  });
}

TEST(Credit, OfMatchedMessagesThatAreWithdrawnIsReturnedOnce) {
  constexpr std::size_t kBytes = 9000;
  constexpr std::size_t kShort = 900;  // leaves at once, with its header
  constexpr std::size_t kMessages = 3;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = 1024;  // headers leave at once, payloads when they are received
    FlowRanks ranks(2, options);
    // What a credit too many would be taken off.
    Messages others(3, kShort);
    others.send_all(ranks, 0, 1, 1);
    const std::uint64_t counted = others.sent.size() * (engine::FlowControl::kPerMessage + kShort);
    delay_payloads(ranks, std::chrono::milliseconds(2500));
    const reference::Bytes data(kBytes, std::byte{7});
    for (std::size_t message = 0; message < kMessages; ++message) {
      reference::Bytes buffer(kBytes);
      const SharedEnding in = receive_with_tag(ranks, buffer, 2);
      const SharedEnding out = send_with_tag(ranks, data, 2, std::chrono::milliseconds(300));
      ranks.run_all();
      ASSERT_TRUE(out->error.has_value());
      EXPECT_EQ(out->error->kind(), ErrorKind::kTimeout) << out->text();
      EXPECT_TRUE(in->good()) << in->text();
      EXPECT_TRUE(buffer == data);
      ranks.settle();
      ASSERT_EQ(ranks.unreturned(0, 1), counted) << "after message " << message;
    }
    EXPECT_TRUE(ranks.group(1)->withdrawn.empty());
    // So no more than a window runs ahead, those included.
    ranks.fabric().set_faults({});
    const std::uint64_t known = ranks.ahead(0, 1);
    const std::size_t fit = (kWindow - known) / (engine::FlowControl::kPerMessage + kShort);
    Messages more(fit + 5, kShort);
    more.send_all(ranks, 0, 1, 3);
    ranks.run_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ranks.held(0), 5U);
    others.receive_all(ranks, 0, 1, 1);
    more.receive_all(ranks, 0, 1, 3);
    ranks.run_all();
    others.expect_arrived();
    more.expect_arrived();
    ranks.settle();
    EXPECT_EQ(ranks.unreturned(0, 1), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Credit, AgreesOnBothSidesWheneverAMessageIsGivenUp) {
  for (std::uint64_t seed = 0; seed < support::seeds(300); ++seed) {
    const std::uint32_t to = seed % 5 == 0 ? 0 : 1;  // itself, too
    const std::uint64_t window = std::array{std::uint64_t{1}, kOneFits, kWindow}.at(seed % 3);
    const std::size_t bytes = seed % 2 == 0 ? 3000 : 9000;
    SCOPED_TRACE(fmt::format("seed {}: {} bytes to {}, window {}", seed, bytes, to, window));
    auto options = support::network(seed, std::chrono::milliseconds(3));
    options.eager_below = std::min<std::size_t>(options.eager_below, 1024);
    FlowRanks ranks(2, options, window);
    std::vector<SharedEnding> endings;
    const reference::Bytes data(bytes, std::byte{1});
    for (int message = 0; message < 4; ++message) {
      engine::OperationSpec spec(gtopk::send(data, to, kTag));
      spec.timeout = std::chrono::milliseconds(5 + ranks.fabric().pick(10));
      endings.push_back(ranks.submit(0, std::move(spec)));
    }
    ranks.run_for(std::chrono::milliseconds(1 + ranks.fabric().pick(20)));
    std::vector<reference::Bytes> buffers(4, reference::Bytes(bytes));
    for (reference::Bytes& buffer : buffers) {
      engine::OperationSpec spec(gtopk::recv(buffer, 0, kTag));
      spec.timeout = std::chrono::seconds(2);
      endings.push_back(ranks.submit(to, std::move(spec)));
    }
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ending->ignore("it is given up, received, or both");
    }
    ranks.settle();
    EXPECT_EQ(ranks.unreturned(0, to), 0U);
    EXPECT_EQ(ranks.held(0), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
}

// The notice comes before the group, and is kept for it.
TEST(Credit, MessageTimedOutBeforeReceiverHasGroup_ReturnsCredit) {
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = 1024;
    FlowRanks ranks(2, options);
    engine::GroupSpec spec;
    spec.name = "side";
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      spec.cards.push_back(ranks.fabric().port(rank).address());
      spec.ids.push_back(ranks.engine(rank).reserve_group_id());
    }
    const auto sender = ranks.engine(0).add_group(spec);
    const reference::Bytes lost(9000, std::byte{1});
    const reference::Bytes data(9000, std::byte{2});
    reference::Bytes buffer(9000);
    engine::OperationSpec brief(gtopk::send(lost, 1, kTag));
    brief.timeout = std::chrono::milliseconds(500);
    const SharedEnding given_up = ranks.submit(0, sender, std::move(brief));
    ranks.run_all();
    EXPECT_EQ(given_up->error->kind(), ErrorKind::kTimeout) << given_up->text();
    ranks.run_for(std::chrono::milliseconds(5));
    spec.rank = 1;
    const auto receiver = ranks.engine(1).add_group(spec);
    const SharedEnding out = ranks.submit(0, sender, gtopk::send(data, 1, kTag));
    const SharedEnding in = ranks.submit(1, receiver, gtopk::recv(buffer, 0, kTag));
    ranks.run_all();
    EXPECT_TRUE(out->good() && in->good()) << out->text() << ", " << in->text();
    EXPECT_TRUE(buffer == data);
    ranks.settle();
    EXPECT_EQ(sender->credits[1].ahead, receiver->credits[0].matched);
    EXPECT_TRUE(ranks.close().empty());
  }
}

// --- What never left counts no longer.

enum class Fate : std::uint8_t {
  kRefused,           ///< at once: no descriptors are left, say
  kFails,             ///< later: its address could not be looked up, say
  kGivenUp,           ///< before it fails
  kGivenUpUnheard,    ///< and the receiver is not reached at all
  kReceiverLeft,      ///< before the call
  kGroupAborted,      ///< before it fails
  kConnectionClosed,  ///< as the receiver had stopped
};

struct Loss {
  std::string name;
  Fate fate;
};

const std::vector<Loss>& losses() {
  static const std::vector<Loss> all = {
      {"refused", Fate::kRefused},
      {"failed", Fate::kFails},
      {"given_up", Fate::kGivenUp},
      {"given_up_unheard", Fate::kGivenUpUnheard},
      {"receiver_left", Fate::kReceiverLeft},
      {"group_aborted", Fate::kGroupAborted},
      {"connection_closed", Fate::kConnectionClosed},
  };
  return all;
}

/// Later than a message is given up, and sooner than its connection is.
constexpr auto kLate = std::chrono::seconds(4);

/// Refuses what rank 0 sends, and its notices, too, if it is unheard.
void refuse_all(FlowRanks& ranks, Fate fate) {
  ranks.fabric().set_faults([fate](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    const bool notice = transport::kind_of(sent.tag) == TagKind::kControl;
    fault.refuse = sent.source == 0 && (!notice || fate == Fate::kGivenUpUnheard);
    if (fault.refuse && fate != Fate::kRefused) {
      fault.delay = kLate;
    }
    return fault;
  });
}

/// Before the sends are called; returns their timeout.
transport::Duration prepare(FlowRanks& ranks, Fate fate) {
  switch (fate) {
    case Fate::kRefused:
    case Fate::kFails:
    case Fate::kGroupAborted:
      refuse_all(ranks, fate);
      break;
    case Fate::kGivenUp:
    case Fate::kGivenUpUnheard:
      refuse_all(ranks, fate);
      return std::chrono::milliseconds(100);
    case Fate::kReceiverLeft:
      ranks.leave(1);
      break;
    case Fate::kConnectionClosed:
      ranks.freeze(1);
      return std::chrono::milliseconds(100);
  }
  return InprocRanks::kTimeout;
}

class UndeliveredMessage : public testing::TestWithParam<Loss> {
 protected:
  /// Of so many bytes: as many as a window holds, and as many again, which are held.
  static void lose(std::size_t bytes) {
    const Fate fate = GetParam().fate;
    auto options = uneven_network(3);
    options.eager_below = fate == Fate::kConnectionClosed ? 0 : options.eager_below;
    FlowRanks ranks(2, options);
    ASSERT_EQ(support::group_works(ranks), "");
    const std::size_t fit = kWindow / (engine::FlowControl::kPerMessage + bytes);
    const transport::Duration timeout = prepare(ranks, fate);
    const reference::Bytes data(bytes);
    std::vector<SharedEnding> lost;
    for (std::size_t message = 0; message < 2 * fit; ++message) {
      lost.push_back(send_with_tag(ranks, data, 1, timeout));
    }
    ranks.run_for(std::chrono::milliseconds(5));
    if (fate == Fate::kGroupAborted) {
      ranks.engine(0).abort_group(*ranks.group(0), Error(ErrorKind::kAborted, "enough"));
    }
    ranks.run_all();
    for (const SharedEnding& ending : lost) {
      EXPECT_FALSE(ending->good());
    }
    ranks.settle();
    EXPECT_EQ(ranks.ahead(0, 1), 0U);
    EXPECT_EQ(ranks.held(0), 0U);
    if (fate == Fate::kReceiverLeft || fate == Fate::kGroupAborted ||
        fate == Fate::kConnectionClosed) {
      return;
    }
    // The whole window is there.
    ranks.fabric().set_faults({});
    Messages next(fit, bytes);
    next.send_all(ranks, 0, 1);
    ranks.run_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ranks.held(0), 0U);
    EXPECT_EQ(next.sends_ended(), fit);
    next.receive_all(ranks, 0, 1);
    ranks.run_all();
    next.expect_arrived();
    EXPECT_TRUE(ranks.close().empty());
  }
};
INSTANTIATE_TEST_SUITE_P(Credit, UndeliveredMessage, testing::ValuesIn(losses()),
                         [](const auto& loss) { return loss.param.name; });

TEST_P(UndeliveredMessage, Short_ReturnsItsCredit) { lose(100); }

TEST_P(UndeliveredMessage, WithSeparatePayload_ReturnsItsCredit) { lose(9000); }

}  // namespace
}  // namespace gtopk
