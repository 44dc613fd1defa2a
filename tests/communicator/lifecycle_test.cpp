// Communicator: a process that starts and ends fifty times holds no more resources than after the
// first time: no thread, no file descriptor, no shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/communicator/member.hpp"
#include "tests/support/forked_ranks.hpp"
#include "tests/support/held_resources.hpp"

namespace gtopk::test {
namespace {

constexpr int kRounds = kSanitized ? 10 : 50;

/// Start, meet, one operation, end.
void live_once(ForkedRank& self, int round) {
  std::vector<float> tensor(20'000, static_cast<float>(1 + self.rank()));
  Member member(self);
  const Pending pending;
  const SparseOptions options{.k = 5'000, .algorithm = round % 2 == 0 ? "gtopk" : "dense"};
  member.group().run(
      gtopk::sparse_all_reduce(tensor.data(), nullptr, tensor.size(), DataType::kFloat32, options),
      pending.call());
  const Ending ending = pending.wait();
  ASSERT_TRUE(ending.good()) << ending.text;
  ASSERT_EQ(tensor.front(), 3.0F);
  member.leave();
}

class LifecycleOver : public testing::TestWithParam<const char*> {};

TEST_P(LifecycleOver, ManyStartsAndEndsLeaveNothingBehind) {
  const SharedMemoryDirectory files;
  const char* const tls = GetParam();
  run_forked_ranks(2,
                   [](ForkedRank& self) {
                     live_once(self,
                               0);  // from here on UCX's per-process resources exist
                     const HeldResources before;
                     int rounds = 1;
                     for (; rounds < kRounds && !testing::Test::HasFailure(); ++rounds) {
                       live_once(self, rounds);
                     }
                     EXPECT_TRUE(holds_no_more_than(before));
                     EXPECT_EQ(rounds, kRounds);
                   },
                   {.limit = std::chrono::seconds(250),
                    .environment = {{"UCX_TLS", tls}, {"UCX_POSIX_DIR", files.path()}}});
  EXPECT_THAT(files.names(), testing::IsEmpty());
}

TEST(Lifecycle, AGroupNeedsAProcess) {
  try {
    const Communicator group(nullptr, {.name = "of nobody"});
    FAIL() << "a group without a process was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("group 'of nobody': a process is needed"));
  }
}

TEST(Lifecycle, RankOutsideItsGroup_IsRefused) {
  run_forked_ranks(1, [](ForkedRank&) {
    try {
      const Communicator group(Process::start(), {.name = "small", .rank = 2, .size = 2});
      FAIL() << "a group of two ranks has a third one";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("group 'small': rank 2 is out of range for 2 ranks"));
    }
  });
}

// A deadline that is computed from it must not lie in the past.
TEST(Lifecycle, ATimeoutWithoutEndIsOne) {
  run_forked_ranks(1, [](ForkedRank&) {
    constexpr auto kForEver = std::chrono::nanoseconds::max();
    const auto process = Process::start();
    Communicator group(process, {.timeout = kForEver});
    std::array<float, 2> sent = {1, 2};
    for (const bool of_the_call : {true, false}) {
      group.set_timeout(of_the_call ? std::chrono::seconds(30) : kForEver);
      std::array<float, 2> buffer{};
      const Pending receiving;
      const Pending sending;
      const auto timeout = of_the_call ? std::optional(kForEver) : std::nullopt;
      group.run(gtopk::recv(buffer, 0, 5), receiving.call(timeout));
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(group.failure(), std::nullopt);  // the engine has looked at its deadlines
      }
      group.run(gtopk::send(sent, 0, 5), sending.call(timeout));
      EXPECT_EQ(receiving.wait().text, "");
      EXPECT_EQ(sending.wait().text, "");
      EXPECT_EQ(buffer, sent);
    }
  });
}

// Shows that the first test can fail: UCX does keep its files in that directory, and a leftover is
// detected.
TEST(Lifecycle, ASharedMemoryFileThatAKilledRankLeavesBehindIsSeen) {
  const SharedMemoryDirectory files;
  ForkedRanks ranks(1,
                    [](ForkedRank& self) {
                      const Member member(self);
                      self.say("lives");
                      static_cast<void>(self.hear());  // for ever
                    },
                    {.environment = {{"UCX_TLS", kSharedMemory},
                                     {"UCX_POSIX_DIR", files.path()},
                                     {"UCX_POSIX_USE_PROC_LINK", "n"}}});
  EXPECT_EQ(ranks.hear(0), "lives");
  ranks.signal(0, SIGKILL);
  EXPECT_TRUE(ranks.join()[0].signalled(SIGKILL));
  EXPECT_THAT(files.names(), testing::Not(testing::IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(Every, LifecycleOver,
                         testing::Values(kTcp, kSharedMemory, "tcp,posix,sysv,self"),
                         [](const auto& instance) {
                           return std::string(instance.param) == "tcp,posix,sysv,self"
                                      ? std::string("TcpAndSharedMemory")
                                      : name_of_transport(instance.param);
                         });

}  // namespace
}  // namespace gtopk::test
