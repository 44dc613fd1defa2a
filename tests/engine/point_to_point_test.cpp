// Engine: point-to-point messages of every size, and those that the sender or the receiver
// abandons: they are skipped and disturb no other.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "src/engine/point_to_point.hpp"
#include "tests/engine/messages.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using support::uneven_network;
using transport::TagKind;

engine::OperationSpec within(engine::OperationSpec spec, transport::Duration timeout) {
  spec.timeout = timeout;
  return spec;
}

/// A message that nobody receives: its sender gives up, and the receiver knows.
void give_up_a_send(InprocRanks& ranks, const reference::Bytes& data) {
  const SharedEnding ending =
      ranks.submit(0, within(gtopk::send(data, 1, kTag), std::chrono::seconds(1)));
  ranks.run_until([&] { return ending->ended; });
  ASSERT_FALSE(ending->good()) << data.size() << " bytes were sent eagerly";
  EXPECT_EQ(ending->error->kind(), ErrorKind::kTimeout) << ending->text();
  ranks.run_for(std::chrono::milliseconds(5));
}

TEST(PointToPoint, OfEverySizeArrives) {
  constexpr std::size_t kShort = engine::kShortPayloadBytes;
  for (const std::size_t bytes : {0UL, 1UL, 1000UL, kShort - 1, kShort, kShort + 1, kLong}) {
    for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
      SCOPED_TRACE(fmt::format("{} bytes, seed {}", bytes, seed));
      InprocRanks ranks(2, uneven_network(seed));
      reference::Bytes sent(bytes, std::byte{42});
      reference::Bytes received(bytes);
      const SharedEnding out = ranks.submit(0, gtopk::send(sent, 1, kTag));
      const SharedEnding in = ranks.submit(1, gtopk::recv(received, 0, kTag));
      ranks.run_all();
      ASSERT_TRUE(out->good() && in->good()) << out->text() << ", " << in->text();
      EXPECT_TRUE(sent == received);
      const auto& counters = ranks.fabric().counters(0);
      EXPECT_EQ(counters.of(TagKind::kPointToPoint).messages_sent, 1U);
      EXPECT_EQ(counters.of(TagKind::kPayload).messages_sent, bytes > kShort ? 1U : 0U);
      EXPECT_EQ(counters.of(TagKind::kControl).messages_sent, 1U);  // hello
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

TEST(PointToPoint, ToTheOwnRankArrivesOrIsGivenUp) {
  InprocRanks ranks(2);
  const reference::Bytes given_up(kLong);
  const reference::Bytes sent(kLong, std::byte{42});
  reference::Bytes received(kLong);
  const SharedEnding lost =
      ranks.submit(0, within(gtopk::send(given_up, 0, kTag), std::chrono::seconds(1)));
  ranks.run_all();
  ASSERT_TRUE(lost->error.has_value());
  EXPECT_EQ(lost->error->kind(), ErrorKind::kTimeout) << lost->text();
  const SharedEnding out = ranks.submit(0, gtopk::send(sent, 0, kTag));
  const SharedEnding in = ranks.submit(0, gtopk::recv(received, 0, kTag));
  ranks.run_all();
  EXPECT_TRUE(out->good() && in->good()) << out->text() << ", " << in->text();
  EXPECT_TRUE(sent == received);
  ranks.settle();
  EXPECT_TRUE(ranks.close().empty());
}

TEST(PointToPoint, TimedOutSend_LeavesDefaultGroupWorking) {
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = std::min<std::size_t>(options.eager_below, 1024);
    InprocRanks ranks(2, options);
    const auto side = ranks.make_group("side", {0, 1});
    const reference::Bytes data(kLong);
    const SharedEnding sent =
        ranks.submit(0, side[0], within(gtopk::send(data, 1, kTag), std::chrono::seconds(1)));
    ranks.run_all();
    ASSERT_TRUE(sent->error.has_value());
    EXPECT_EQ(sent->error->kind(), ErrorKind::kTimeout) << sent->text();
    EXPECT_FALSE(sent->error->ended_group());
    ranks.run_for(4 * engine::Engine::kLingerBound);
    EXPECT_EQ(support::group_works(ranks), "");
    EXPECT_TRUE(ranks.fabric().port(0).connected(ranks.group(0)->peer(1)));
  }
}

TEST(PointToPoint, ThatIsNotTakenInTimeLeavesTheNetworkAtOnce) {
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = 1024;
    InprocRanks ranks(2, options);
    const reference::Bytes data(kLong);
    give_up_a_send(ranks, data);
    if (HasFatalFailure()) {
      return;
    }
    ranks.run_for(std::chrono::milliseconds(10));
    EXPECT_EQ(ranks.engine(0).under_way(), 0U);
  }
}

TEST(PointToPoint, ThatItsSenderGaveUpIsPassedOver) {
  for (std::uint64_t seed = 0; seed < support::seeds(24); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = std::min<std::size_t>(options.eager_below, 1024);
    InprocRanks ranks(2, options);
    const reference::Bytes before(500, std::byte{1});
    const reference::Bytes given_up(kLong, std::byte{2});
    const reference::Bytes after(kLong, std::byte{3});
    std::vector<SharedEnding> endings = {ranks.submit(0, gtopk::send(before, 1, kTag))};
    give_up_a_send(ranks, given_up);
    give_up_a_send(ranks, reference::Bytes(2 * kLong));
    if (HasFatalFailure()) {
      return;
    }
    endings.push_back(ranks.submit(0, gtopk::send(after, 1, kTag)));
    reference::Bytes first(before.size());
    reference::Bytes second(after.size());
    endings.push_back(ranks.submit(1, gtopk::recv(first, 0, kTag)));
    endings.push_back(ranks.submit(1, gtopk::recv(second, 0, kTag)));
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    EXPECT_TRUE(first == before);
    EXPECT_TRUE(second == after);
    EXPECT_TRUE(ranks.group(1)->withdrawn.empty());
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(PointToPoint, GivenUpSend_IsPassedOverByReceiveOfOtherSize) {
  for (const std::size_t expected : {0UL, 10UL, kLong}) {
    transport::inproc::FabricOptions options;
    options.eager_below = 0;  // every message waits for its receive
    InprocRanks ranks(2, options);
    give_up_a_send(ranks, reference::Bytes(500, std::byte{2}));
    if (HasFatalFailure()) {
      return;
    }
    ranks.run_for(std::chrono::milliseconds(5));
    const reference::Bytes data(expected, std::byte{3});
    reference::Bytes buffer(expected);
    const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
    const SharedEnding in = ranks.submit(1, gtopk::recv(buffer, 0, kTag));
    ranks.run_all();
    EXPECT_TRUE(out->good() && in->good()) << in->text();
    EXPECT_TRUE(buffer == data);
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(PointToPoint, GivenUpSend_LeavesOtherMessagesInOrder) {
  for (std::uint64_t seed = 0; seed < support::seeds(24); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = uneven_network(seed);
    options.eager_below = std::min<std::size_t>(options.eager_below, 1024);
    InprocRanks ranks(2, options);
    give_up_a_send(ranks, reference::Bytes(kLong));
    if (HasFatalFailure()) {
      return;
    }
    constexpr std::size_t kMessages = 12;
    std::vector<reference::Bytes> sent;
    std::vector<reference::Bytes> received;
    std::vector<SharedEnding> endings;
    for (std::size_t number = 0; number < kMessages; ++number) {
      sent.emplace_back(number % 2 == 0 ? 20 : kLong, static_cast<std::byte>(number));
      received.emplace_back(sent.back().size());
    }
    for (std::size_t number = 0; number < kMessages; ++number) {
      // Some arrive before their receive, some after.
      if (number == 3) {
        for (reference::Bytes& buffer : received) {
          endings.push_back(ranks.submit(1, gtopk::recv(buffer, 0, kTag)));
        }
      }
      endings.push_back(ranks.submit(0, gtopk::send(sent[number], 1, kTag)));
      ranks.run_for(std::chrono::microseconds(ranks.fabric().pick(200)));
    }
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    EXPECT_TRUE(sent == received);
    EXPECT_EQ(ranks.group(1)->receive_lines.size(), 0U);
    EXPECT_TRUE(ranks.close().empty());
  }
}

// While it waits behind another receive, its timeout runs as usual.
TEST(PointToPoint, ReceivesThatAreGivenUpMakeWayForThoseBehindThem) {
  InprocRanks ranks(2);
  std::vector<reference::Bytes> buffers(4, reference::Bytes(10));
  std::vector<SharedEnding> received;
  for (const int seconds : {5, 1, 20, 20}) {
    received.push_back(ranks.submit(
        1, within(gtopk::recv(buffers[received.size()], 0, kTag), std::chrono::seconds(seconds))));
  }
  ranks.run_until([&] { return received[1]->ended; });
  EXPECT_FALSE(received[0]->ended);
  ranks.run_until([&] { return received[0]->ended; });
  for (const std::size_t late : {0U, 1U}) {
    EXPECT_EQ(received[late]->error->kind(), ErrorKind::kTimeout) << received[late]->text();
    EXPECT_NE(received[late]->text().find("is alive"), std::string::npos) << received[late]->text();
  }
  const reference::Bytes first(10, std::byte{1});
  const reference::Bytes second(10, std::byte{2});
  const SharedEnding sent_first = ranks.submit(0, gtopk::send(first, 1, kTag));
  const SharedEnding sent_second = ranks.submit(0, gtopk::send(second, 1, kTag));
  ranks.run_all();
  EXPECT_TRUE(sent_first->good() && sent_second->good());
  EXPECT_TRUE(received[2]->good() && received[3]->good());
  EXPECT_TRUE(buffers[2] == first && buffers[3] == second);
  EXPECT_TRUE(ranks.close().empty());
}

// At any moment: the receiver gets the whole message, or skips it and gets the next.
TEST(PointToPoint, SendGivenUpMidReceive_ArrivesWholeOrIsSkipped) {
  std::size_t received_whole = 0;
  constexpr std::uint64_t kSeeds = 200;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto options = support::network(seed, std::chrono::milliseconds(3));
    options.eager_below = std::min<std::size_t>(options.eager_below, 1024);
    InprocRanks ranks(2, options);
    const reference::Bytes given_up(kLong, std::byte{2});
    const reference::Bytes next(kLong, std::byte{3});
    const SharedEnding lost =
        ranks.submit(0, within(gtopk::send(given_up, 1, kTag), std::chrono::milliseconds(10)));
    ranks.run_for(std::chrono::milliseconds(1 + ranks.fabric().pick(20)));
    received_whole += received_though_given_up(ranks, lost, given_up, next) ? 1 : 0;
    ranks.settle();
    EXPECT_TRUE(ranks.close().empty());
  }
  EXPECT_GT(received_whole, 0U);
  EXPECT_LT(received_whole, kSeeds);
}

TEST(PointToPoint, SizeMismatch_NamesBothSizesAndReleasesSender) {
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
    for (const auto& [sent, expected] : {std::pair{100UL, 10UL},
                                         {10UL, 100UL},
                                         {kLong, 10UL},
                                         {10UL, kLong},
                                         {kLong, kLong + 1}}) {
      SCOPED_TRACE(fmt::format("seed {}: {} bytes into {}", seed, sent, expected));
      InprocRanks ranks(2, uneven_network(seed));
      const reference::Bytes data(sent);
      reference::Bytes buffer(expected);
      const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
      const SharedEnding in = ranks.submit(1, gtopk::recv(buffer, 0, kTag));
      ranks.run_all();
      EXPECT_TRUE(out->good()) << out->text();
      ASSERT_TRUE(in->error.has_value());
      EXPECT_EQ(in->error->kind(), ErrorKind::kMismatch) << in->text();
      EXPECT_NE(in->text().find(fmt::format("rank 0 (host node0, pid 1000) sent {} bytes, rank 1 "
                                            "(host node1, pid 1001) expects {}",
                                            sent, expected)),
                std::string::npos)
          << in->text();
      EXPECT_EQ(support::group_works(ranks), "");
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

// Sent while the receiver, whose time is up, asks the sender what it does.
TEST(PointToPoint, ThatComesAtTheLastMomentIsReceivedOnce) {
  std::uint64_t late = 0;
  for (std::uint64_t seed = 0; seed < support::seeds(1000); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    reference::Random random(seed);
    InprocRanks ranks(2, support::network(seed, std::chrono::microseconds(20)));
    const std::size_t size = seed % 2 == 0 ? 10 : kLong;
    const reference::Bytes data(size, std::byte{1});
    reference::Bytes buffer(size);
    const std::uint32_t from = 0;
    const bool of_any = seed % 5 == 0;
    std::uint32_t source = 0;
    SharedEnding in = ranks.submit(
        1, within(of_any ? gtopk::recv_any(buffer, kTag, source) : gtopk::recv(buffer, from, kTag),
                  std::chrono::seconds(1)));
    const transport::TimePoint until =
        ranks.now() + std::chrono::seconds(1) + std::chrono::microseconds(random.below(60));
    ranks.run_until([&] { return ranks.now() >= until; });
    const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
    ranks.run_until([&] { return in->ended; });
    if (!in->good()) {
      ++late;
      EXPECT_EQ(in->error->kind(), ErrorKind::kTimeout) << in->text();
      in = ranks.submit(1, gtopk::recv(buffer, from, kTag));
    }
    ranks.run_all();
    EXPECT_TRUE(out->good() && in->good()) << out->text() << ", " << in->text();
    EXPECT_TRUE(buffer == data);
    EXPECT_TRUE(ranks.close().empty());
  }
  EXPECT_GT(late, support::seeds(160));
  EXPECT_LT(late, 950U);
}

TEST(PointToPoint, PayloadAfterReceiveTimeout_IsDiscarded) {
  InprocRanks ranks(2);
  ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    if (transport::kind_of(sent.tag) == TagKind::kPayload) {
      fault.delay = std::chrono::seconds(10);
    }
    return fault;
  });
  const reference::Bytes data(kLong);
  reference::Bytes buffer(kLong);
  const SharedEnding out = ranks.submit(0, gtopk::send(data, 1, kTag));
  const SharedEnding in =
      ranks.submit(1, within(gtopk::recv(buffer, 0, kTag), std::chrono::seconds(1)));
  ranks.run_all();
  EXPECT_TRUE(out->good()) << out->text();
  ASSERT_TRUE(in->error.has_value());
  EXPECT_EQ(in->error->kind(), ErrorKind::kTimeout) << in->text();
  ranks.settle();
  EXPECT_TRUE(ranks.close().empty());
}

TEST(PointToPoint, WhosePayloadIsLostIsSaidNotToHaveArrivedWhole) {
  InprocRanks ranks(2);
  ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    fault.drop = transport::kind_of(sent.tag) == TagKind::kPayload;
    return fault;
  });
  const reference::Bytes data(kLong);
  reference::Bytes buffer(kLong);
  ranks.submit(0, gtopk::send(data, 1, kTag))->ignore("its payload is lost");
  const SharedEnding in =
      ranks.submit(1, within(gtopk::recv(buffer, 0, kTag), std::chrono::seconds(1)));
  ranks.run_until([&] { return in->ended; });
  EXPECT_NE(in->text().find("rank 0 (host node0, pid 1000) is alive and its message has not "
                            "fully arrived"),
            std::string::npos)
      << in->text();
}

// A message, header and all, that a living receiver never takes: only its own timeout may run out.
TEST(PointToPoint, GivenUpSendToLivingRank_KeepsConnectionAlive) {
  InprocRanks ranks(2, {.eager_below = 0});
  const reference::Bytes given_up(10, std::byte{1});
  give_up_a_send(ranks, given_up);
  if (HasFatalFailure()) {
    return;
  }
  ranks.run_for(20 * engine::Engine::kLingerBound);
  EXPECT_EQ(ranks.engine(0).under_way(), 1U);
  EXPECT_EQ(support::group_works(ranks), "");
  const reference::Bytes next(10, std::byte{2});
  reference::Bytes buffer(10);
  const SharedEnding out = ranks.submit(0, gtopk::send(next, 1, kTag));
  const SharedEnding in = ranks.submit(1, gtopk::recv(buffer, 0, kTag));
  ranks.run_all();
  EXPECT_TRUE(out->good() && in->good()) << out->text() << ", " << in->text();
  EXPECT_TRUE(buffer == next);
  EXPECT_TRUE(ranks.close().empty());
}

TEST(PointToPoint, GivenUpSendToStoppedRank_LeavesNothingUnderWay) {
  InprocRanks ranks(2);
  const reference::Bytes data(kLong);
  ranks.freeze(1);
  give_up_a_send(ranks, data);
  if (HasFatalFailure()) {
    return;
  }
  ranks.run_for(2 * engine::Engine::kLingerBound);
  EXPECT_EQ(ranks.engine(0).under_way(), 0U);
}

TEST(PointToPoint, GivenUpSendToRemovedGroup_LeavesNothingUnderWay) {
  InprocRanks ranks(2);
  const auto side = ranks.make_group("side", {0, 1});
  ranks.engine(1).remove_group(*side[1]);
  const reference::Bytes data(kLong);
  const SharedEnding sent =
      ranks.submit(0, side[0], within(gtopk::send(data, 1, kTag), std::chrono::seconds(1)));
  ranks.run_all();
  EXPECT_FALSE(sent->good());
  ranks.run_for(std::chrono::milliseconds(10));
  EXPECT_EQ(ranks.engine(0).under_way(), 0U);
  EXPECT_EQ(support::group_works(ranks), "");
}

}  // namespace
}  // namespace gtopk
