// Engine: operations called while their input is still on its way (from a device).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/gate.hpp"
#include "src/engine/engine.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;

engine::OperationSpec sum(std::int64_t& value) {
  return all_reduce(&value, 1, DataType::kInt64, ReduceOp::kSum);
}

std::shared_ptr<Gate> on_its_way() { return std::make_shared<Gate>(1); }

TEST(Input, NothingIsReadBeforeItIsThere) {
  InprocRanks ranks(kRanks, support::network(1));
  std::vector<std::int64_t> values(kRanks, -1000);
  std::vector<std::shared_ptr<Gate>> inputs;
  std::vector<SharedEnding> endings;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    inputs.push_back(on_its_way());
    endings.push_back(ranks.submit(rank, sum(values[rank]), inputs[rank]));
  }
  ranks.run_for(std::chrono::seconds(1));
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_FALSE(endings[rank]->ended);
    values[rank] = rank + 1;
    inputs[rank]->arrive(true);
  }
  ranks.run_all();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(endings[rank]->good()) << endings[rank]->text();
    EXPECT_EQ(values[rank], 6);
  }
  EXPECT_TRUE(ranks.close().empty());
}

// Otherwise ranks whose inputs arrive in different orders would run in different orders.
TEST(Input, LaterCollectivesStartBehindIt) {
  InprocRanks ranks(kRanks, support::network(2));
  std::vector<std::int64_t> first(kRanks, 1);
  std::vector<std::int64_t> second(kRanks, 10);
  std::vector<SharedEnding> endings;
  const auto late = on_its_way();
  const auto early = on_its_way();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    endings.push_back(ranks.submit(rank, sum(first[rank]), rank == 0 ? late : nullptr));
    endings.push_back(ranks.submit(rank, sum(second[rank]), rank == 0 ? early : nullptr));
  }
  early->arrive(true);
  ranks.run_for(std::chrono::seconds(1));
  EXPECT_EQ(ranks.group(0)->in_flight(), 0U);
  for (const SharedEnding& ending : endings) {
    EXPECT_FALSE(ending->ended);
  }
  late->arrive(true);
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(first[rank], 3);
    EXPECT_EQ(second[rank], 30);
  }
  EXPECT_TRUE(ranks.close().empty());
}

TEST(Input, OfACallThatIsAbortedIsNotWaitedForByTheNext) {
  InprocRanks ranks(kRanks, support::network(2));
  std::vector<std::int64_t> values(kRanks, 10);
  std::int64_t unread = 1;
  const auto never = on_its_way();
  std::vector<SharedEnding> failing{ranks.submit(2, sum(unread), never)};
  std::vector<SharedEnding> endings{ranks.submit(2, sum(values[2]))};
  ranks.run_for(std::chrono::seconds(1));
  failing.push_back(ranks.submit(0, sum(unread)));
  failing.push_back(ranks.submit(1, barrier()));
  for (const std::uint32_t rank : {0U, 1U}) {
    endings.push_back(ranks.submit(rank, sum(values[rank])));
  }
  ranks.run_for(std::chrono::seconds(1));
  for (const SharedEnding& ending : failing) {
    ASSERT_TRUE(ending->ended);
    EXPECT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
  }
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->ended);
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  EXPECT_EQ(values, std::vector<std::int64_t>(kRanks, 30));
}

TEST(Input, OfAWaitingCollective_DoesNotDelayMessages) {
  InprocRanks ranks(2, support::network(3));
  std::int64_t reduced[2] = {1, 2};
  std::int64_t sent = 7;
  std::int64_t received = 0;
  const auto input = on_its_way();
  const auto message_input = on_its_way();
  const SharedEnding collective = ranks.submit(0, sum(reduced[0]), input);
  const SharedEnding others = ranks.submit(1, sum(reduced[1]));
  const SharedEnding sending =
      ranks.submit(0, gtopk::send(std::as_bytes(std::span(&sent, 1)), 1, 5), message_input);
  const SharedEnding receiving =
      ranks.submit(1, gtopk::recv(std::as_writable_bytes(std::span(&received, 1)), 0, 5));
  ranks.run_for(std::chrono::seconds(1));
  EXPECT_FALSE(receiving->ended);
  sent = 8;
  message_input->arrive(true);
  ranks.run_until([&] { return receiving->ended && sending->ended; });
  EXPECT_EQ(received, 8);
  EXPECT_FALSE(collective->ended);
  input->arrive(true);
  ranks.run_all();
  for (const SharedEnding& ending : {collective, others, sending, receiving}) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  EXPECT_EQ(reduced[0], 3);
  EXPECT_TRUE(ranks.close().empty());
}

TEST(Input, UnreadableInput_FailsEveryRankAndGroupWorksOn) {
  InprocRanks ranks(kRanks, support::network(4));
  std::vector<std::int64_t> values(kRanks, 1);
  const auto input = on_its_way();
  std::vector<SharedEnding> endings;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    endings.push_back(ranks.submit(rank, sum(values[rank]), rank == 1 ? input : nullptr));
  }
  ranks.run_for(std::chrono::seconds(1));
  input->arrive(false);
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    EXPECT_FALSE(ending->good());
    EXPECT_THAT(ending->text(), HasSubstr("its input did not arrive from the device"));
  }
  EXPECT_EQ(support::group_works(ranks), "");
}

TEST(Input, ThatNeverComesIsATimeOutThatSaysSo) {
  InprocRanks ranks(kRanks, support::network(5));
  std::vector<std::int64_t> values(kRanks, 1);
  const auto input = on_its_way();
  std::vector<SharedEnding> endings;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    endings.push_back(ranks.submit(rank, sum(values[rank]), rank == 2 ? input : nullptr));
  }
  std::int64_t later = 5;  // called after it, so it fails with the group
  const SharedEnding behind = ranks.submit(2, sum(later));
  ranks.run_all();
  for (const SharedEnding& ending : endings) {
    EXPECT_FALSE(ending->good());
    EXPECT_THAT(ending->text(), HasSubstr("its input did not arrive from the device"));
  }
  EXPECT_FALSE(behind->good());
  input->arrive(true);  // too late: nothing waits for it any more
}

TEST(Input, ArrivingAfterItsGroupWasLeft_IsIgnored) {
  const auto input = on_its_way();
  std::int64_t value = 1;
  {
    InprocRanks ranks(1, support::network(6));
    const SharedEnding ending = ranks.submit(0, sum(value), input);
    ranks.run_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(ending->ended);
    ranks.leave(0);
    EXPECT_FALSE(ending->good());
    EXPECT_THAT(ending->text(), HasSubstr("leaving its process groups"));
  }
  input->arrive(true);
}

}  // namespace
}  // namespace gtopk
