// Communicator: what one rank leaves behind, or never takes, does not hold the others up: messages
// that nobody receives, abandoned sends, stuck groups. In real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/communicator/member.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using testing::HasSubstr;

/// Far less than the 20 s after which UCX itself notices, or than n groups would take one after the
/// other.
constexpr std::chrono::seconds kSoon = 10s;

class Remains : public testing::TestWithParam<const char*> {
 protected:
  static ForkedRanks::Options options() { return {.environment = {{"UCX_TLS", GetParam()}}}; }
};

INSTANTIATE_TEST_SUITE_P(Every, Remains,
                         testing::Values(kTcp, kSharedMemory, "tcp,posix,sysv,self"),
                         [](const auto& instance) {
                           return std::string(instance.param) == "tcp,posix,sysv,self"
                                      ? std::string("TcpAndSharedMemory")
                                      : name_of_transport(instance.param);
                         });

Ending sum(Communicator& group) {
  std::int32_t value = 1;
  const Pending pending;
  group.run(gtopk::all_reduce(&value, 1, DataType::kInt32, ReduceOp::kSum), pending.call());
  return pending.wait();
}

TEST_P(Remains, DepartedRank_IsMissedAtOnceButItsMessageIsReceived) {
  run_forked_ranks(
      2,
      [](ForkedRank& self) {
        const auto store = self.store();
        std::vector<std::byte> unreceived(100'000, std::byte{42});
        Member member(self);
        ASSERT_TRUE(sum(member.group()).good());
        const Pending waits;
        std::int32_t value = 1;
        if (self.rank() == 0) {
          member.group().run(gtopk::all_reduce(&value, 1, DataType::kInt32, ReduceOp::kSum),
                             waits.call());
        } else {
          const Pending sent;
          member.group().run(gtopk::send(unreceived, 0, 7), sent.call());
          ASSERT_TRUE(sent.wait().good());
          EXPECT_LT(member.leave(), kSoon);
          wait_for_all(*store, "left", 2);
          return;
        }
        const auto begin = steady_clock::now();
        const Ending missed = waits.wait();
        EXPECT_LT(steady_clock::now() - begin, kSoon);
        EXPECT_EQ(missed.error, ErrorKind::kPeerFailed);
        EXPECT_THAT(missed.text, HasSubstr("rank 1"));
        EXPECT_THAT(missed.text, HasSubstr("has left"));
        wait_for_all(*store, "left", 2);
        std::vector<std::byte> buffer(unreceived.size());
        const Pending late;
        member.group().run(gtopk::recv(buffer, 1, 7), late.call());
        const Ending ending = late.wait();
        EXPECT_TRUE(ending.good()) << ending.text;
        EXPECT_TRUE(buffer == unreceived);
        member.leave();
      },
      options());
}

// Above 267 KiB a message waits at its sender until it is received.
TEST_P(Remains, ASendThatIsGivenUpLeavesTheTwoRanksWorking) {
  run_forked_ranks(
      2,
      [](ForkedRank& self) {
        std::vector<std::byte> given_up(4U << 20U, std::byte{42});
        std::vector<std::byte> next(given_up.size(), std::byte{43});
        std::vector<std::byte> buffer(given_up.size());
        const auto store = self.store();
        Member member(self);
        Communicator& group = member.group();
        ASSERT_TRUE(sum(group).good());
        if (self.rank() == 0) {
          std::promise<void> released;
          std::future<void> let_go = released.get_future();
          const Pending sent;
          Call call = sent.call(200ms);
          call.keepalive = std::shared_ptr<void>(
              &released, [](void* it) { static_cast<std::promise<void>*>(it)->set_value(); });
          group.run(gtopk::send(given_up, 1, 7), std::move(call));
          EXPECT_EQ(sent.wait().error, ErrorKind::kTimeout);
          // The network releases the memory.
          ASSERT_EQ(let_go.wait_for(kWatchdog), std::future_status::ready);
        }
        wait_for_all(*store, "given up", 2);
        const Ending after = sum(group);
        EXPECT_TRUE(after.good()) << after.text;
        // The next message with this tag is received instead.
        const Pending moved;
        if (self.rank() == 0) {
          group.run(gtopk::send(next, 1, 7), moved.call());
        } else {
          group.run(gtopk::recv(buffer, 0, 7), moved.call());
        }
        const Ending ending = moved.wait();
        EXPECT_TRUE(ending.good()) << ending.text;
        EXPECT_TRUE(self.rank() == 0 || buffer == next);
        member.leave();
      },
      options());
}

TEST(StuckGroups, AreDestroyedTogetherInTheTimeOfOne) {
  run_forked_ranks(1, [](const ForkedRank&) {
    const auto process = Process::start();
    std::vector<std::byte> buffer(10);
    std::vector<Pending> stuck(20);
    std::vector<std::unique_ptr<Communicator>> groups;
    for (std::size_t number = 0; number < stuck.size(); ++number) {
      const std::string name = fmt::format("group{}", number);
      groups.push_back(std::make_unique<Communicator>(process, Meeting{.name = name}));
      groups.back()->run(gtopk::recv(buffer, 0, 7),
                         stuck[number].call());  // from itself; never sent
    }
    const auto begin = steady_clock::now();
    groups.clear();
    EXPECT_LT(steady_clock::now() - begin, kSoon);
    for (const Pending& pending : stuck) {
      EXPECT_EQ(pending.wait().error, ErrorKind::kAborted);
    }
  });
}

TEST(Exchange, OfTopkHasCapacityForWhatAllRanksSelected) {
  constexpr std::size_t kSelected = 3;
  run_forked_ranks(2, [](ForkedRank& self) {
    Member member(self);
    std::vector<std::uint32_t> indices(kSelected);
    std::iota(indices.begin(), indices.end(), 10U * static_cast<std::uint32_t>(self.rank()));
    const std::vector<float> values(kSelected, 1.0F);
    std::vector<std::uint32_t> result_indices(2 * kSelected);
    std::vector<float> result_values(2 * kSelected);
    std::uint64_t count = 0;
    const SparseOptions options{.k = kSelected, .algorithm = "topk"};
    Preselected entries{indices, values, result_indices, result_values, &count};
    entries.result_values = std::span(result_values).first(2 * kSelected - 1);
    try {
      member.group().run(gtopk::exchange(entries, 1000, options), {});
      ADD_FAILURE() << "a result of up to 6 entries in a buffer for 5";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(),
                  HasSubstr("up to 6 entries; results have room for 6 indices and 5"));
    }
    entries.result_values = result_values;
    const Pending pending;
    member.group().run(gtopk::exchange(entries, 1000, options), pending.call());
    const Ending ending = pending.wait();
    ASSERT_TRUE(ending.good()) << ending.text;
    EXPECT_EQ(count, 2 * kSelected);
    EXPECT_EQ(result_indices, (std::vector<std::uint32_t>{0, 1, 2, 10, 11, 12}));
    member.leave();
  });
}

}  // namespace
}  // namespace gtopk::test
