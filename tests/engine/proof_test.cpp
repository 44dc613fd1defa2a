// Engine: in a job with a secret, notices of others are not accepted, nor is a message before its
// sender has proved that it knows the secret.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/engine/notice.hpp"
#include "src/transport/base/job_key.hpp"
#include "src/transport/base/tag.hpp"
#include "tests/support/calls.hpp"
#include "tests/transport/suite/message.hpp"

namespace gtopk {
namespace {

using engine::Notice;
using engine::NoticeKind;
using support::InprocRanks;
using support::SharedEnding;
using test::Message;
using transport::JobKey;
using transport::TagKind;

constexpr std::chrono::seconds kSoon{1};
const std::string kSecret = "the secret of this job";
const std::string kOther = "the secret of that job";

transport::inproc::FabricOptions wholly_eager() {
  transport::inproc::FabricOptions options;
  options.eager_below = std::numeric_limits<std::size_t>::max();
  return options;
}

TEST(Proof, OfRanksWithOneSecret_goesWithTheHelloAndCostsNoMessage) {
  for (const std::string& secret : {std::string(), kSecret}) {
    InprocRanks ranks(2, wholly_eager(), {}, {secret, secret});
    ASSERT_EQ(support::group_works(ranks), "");
    ranks.settle();
    for (const std::uint32_t rank : {0U, 1U}) {
      const transport::inproc::Traffic& notices =
          ranks.fabric().counters(rank).of(TagKind::kControl);
      EXPECT_EQ(notices.messages_sent, 1U);
      EXPECT_EQ(notices.bytes_sent, Notice::kBytes + (secret.empty() ? 0 : JobKey::kProofBytes));
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Proof, OfAnotherSecretOrNone_isAnErrorOnBothSidesThatSaysSo) {
  for (const auto& secrets : {std::vector{kSecret, kOther}, std::vector{kSecret, std::string()}}) {
    InprocRanks ranks(2, wholly_eager(), {}, secrets);
    std::vector<std::int64_t> values(2, 1);
    const auto endings = ranks.run([&](std::uint32_t rank) {
      engine::OperationSpec spec(
          gtopk::all_reduce(&values[rank], 1, DataType::kInt64, ReduceOp::kSum));
      spec.timeout = kSoon;
      return spec;
    });
    for (const std::uint32_t rank : {0U, 1U}) {
      const std::string text = endings[rank]->text();
      EXPECT_NE(
          text.find(rank == 0 ? "rank 1 (host node1, pid 1001)" : "rank 0 (host node0, pid 1000)"),
          std::string::npos)
          << text;
      EXPECT_NE(text.find("set the same GTOPK_SECRET on all ranks"), std::string::npos) << text;
    }
  }
}

/// Sends notices to rank 0 in the name of rank 1, and has their addresses and keys.
class Impostor {
 public:
  Impostor(InprocRanks& ranks, std::uint32_t seat)
      : ranks_(ranks),
        port_(ranks.fabric().port(seat)),
        target_(port_.add_peer(ranks.fabric().port(0).card())) {}

  /// proof: of what secret; none if that is empty.
  void send(const Notice& notice, const std::string& secret) {
    Notice::Wire wire{};
    encode(notice, wire);
    std::string bytes(reinterpret_cast<const char*>(wire.data()), wire.size());
    if (const auto key = JobKey::of(secret)) {
      std::array<std::byte, JobKey::kProofBytes> proof{};
      key->prove(identity(1), identity(0), wire, proof);
      bytes.append(reinterpret_cast<const char*>(proof.data()), proof.size());
    }
    sent_.emplace_back(bytes).send(port_, target_, transport::control_tag(identity(1)));
  }

 private:
  [[nodiscard]] std::uint64_t identity(std::uint32_t rank) {
    return ranks_.fabric().port(rank).self().identity;
  }

  InprocRanks& ranks_;
  transport::Transport& port_;
  transport::PeerId target_;
  std::deque<Message> sent_;
};

class Forged : public testing::TestWithParam<std::string> {};

TEST_P(Forged, NoticesOfAStranger_changeNothing) {
  InprocRanks ranks(3, wholly_eager(), {}, {kSecret, kSecret, kSecret});
  const auto pair = ranks.make_group("pair", {0, 1});
  Impostor stranger(ranks, 2);
  const auto forge = [&](NoticeKind kind, const std::string& text) {
    stranger.send({kind, ErrorKind::kTransport, pair[0]->id(), 0, text, pair[1]->id()}, GetParam());
  };
  // Before rank 1 has said anything, and after.
  for (int time = 0; time < 2; ++time) {
    forge(NoticeKind::kHello, ranks.fabric().port(2).address());
    forge(NoticeKind::kGroupFailure, "says the stranger");
    forge(NoticeKind::kGoodbye, "says the stranger");
    ranks.settle();
    ASSERT_EQ(support::group_works(ranks), "");
    EXPECT_FALSE(pair[0]->failure.has_value());
  }
  ranks.settle();
}

INSTANTIATE_TEST_SUITE_P(Proofs, Forged, testing::Values(std::string(), kOther),
                         [](const auto& instance) {
                           return std::string(instance.param.empty() ? "None" : "OfAnotherSecret");
                         });

TEST(Proof, OfTheSecret_isWhatMakesANoticeCount) {
  InprocRanks ranks(2, wholly_eager(), {}, {kSecret, kSecret});
  Impostor knows_it(ranks, 1);
  knows_it.send({NoticeKind::kGroupFailure, ErrorKind::kAborted, ranks.group(0)->id(), 0,
                 "says one of us", ranks.group(1)->id()},
                kSecret);
  ranks.settle();
  ASSERT_TRUE(ranks.group(0)->failure.has_value());
  EXPECT_STREQ(ranks.group(0)->failure->what(), "says one of us");
}

TEST(Proof, ThatNeverComes_keepsAMessageFromBeingAccepted) {
  for (const std::string& secret : {std::string(), kSecret}) {
    InprocRanks ranks(2, wholly_eager(), {}, {secret, secret});
    ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
      transport::inproc::Fault fault;
      fault.drop = sent.source == 1 && transport::kind_of(sent.tag) == TagKind::kControl;
      return fault;
    });
    const reference::Bytes bytes(8);
    reference::Bytes buffer(8);
    engine::OperationSpec receive(gtopk::recv(buffer, 1, 7));
    receive.timeout = kSoon;
    const SharedEnding received = ranks.submit(0, std::move(receive));
    const SharedEnding sent = ranks.submit(1, gtopk::send(bytes, 0, 7));
    ranks.run_all();
    EXPECT_TRUE(sent->good()) << sent->text();
    EXPECT_EQ(received->good(), secret.empty()) << received->text();
    if (!received->good()) {
      EXPECT_NE(received->text().find("rank 1 (host node1, pid 1001) does not answer"),
                std::string::npos)
          << received->text();
    }
  }
}

TEST(Proof, ThatCame_isNotDoubtedForWhatAStrangerForgesLater) {
  InprocRanks ranks(3, wholly_eager(), {}, {kSecret, kSecret, kSecret});
  ASSERT_EQ(support::group_works(ranks), "");
  Impostor stranger(ranks, 2);
  stranger.send({NoticeKind::kGoodbye, ErrorKind::kTransport, 0, 0, "forged", 0}, kOther);
  ranks.settle();
  ranks.fabric().set_faults([](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    fault.drop = sent.source == 1 && transport::kind_of(sent.tag) == TagKind::kControl;
    return fault;
  });
  reference::Bytes buffer(8);
  engine::OperationSpec receive(gtopk::recv(buffer, 1, 7));
  receive.timeout = kSoon;
  const SharedEnding received = ranks.submit(0, std::move(receive));
  ranks.run_all();
  ASSERT_FALSE(received->good());
  const std::string text = received->text();
  EXPECT_NE(text.find("rank 1 (host node1, pid 1001) does not answer"), std::string::npos) << text;
  EXPECT_EQ(text.find("GTOPK_SECRET"), std::string::npos) << text;
}

}  // namespace
}  // namespace gtopk
