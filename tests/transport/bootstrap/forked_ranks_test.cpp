// Tests of the test support: how a forked rank ended is reported correctly.
#include "tests/support/forked_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(ForkedRanks, MeetAtTheRendezvous) {
  run_forked_ranks(5, [](ForkedRank& rank) {
    const auto store = rank.store();
    store->set(std::to_string(rank.rank()), "here");
    for (int other = 0; other < rank.size(); ++other) {
      EXPECT_EQ(store->get(std::to_string(other), 30s), "here");
    }
  });
}

TEST(ForkedRanks, ReportFailedExpectationsAndExceptions) {
  ForkedRanks ranks(3, [](ForkedRank& rank) {
    if (rank.rank() == 0) {
      EXPECT_EQ(1, 2) << "on purpose";
    } else if (rank.rank() == 1) {
      throw std::runtime_error("thrown on purpose");
    }
  });
  const auto reports = ranks.join();
  EXPECT_EQ(reports[0].end, RankReport::End::kFailed);
  EXPECT_THAT(reports[0].text, HasSubstr("on purpose"));
  EXPECT_EQ(reports[1].end, RankReport::End::kFailed);
  EXPECT_THAT(reports[1].text, HasSubstr("thrown on purpose"));
  EXPECT_TRUE(reports[2].passed()) << reports[2];
}

TEST(ForkedRanks, TalkWithTheParentAndDieByItsSignal) {
  ForkedRanks ranks(2, [](ForkedRank& rank) {
    rank.say("ready");
    rank.say(rank.hear() + " heard");
    static_cast<void>(rank.hear());
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.hear(rank), "ready");
    ranks.tell(rank, "go");
    EXPECT_EQ(ranks.hear(rank), "go heard");
  }
  ranks.signal(0, SIGKILL);
  ranks.tell(1, "leave");
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].signalled(SIGKILL)) << reports[0];
  EXPECT_TRUE(reports[1].passed()) << reports[1];
}

TEST(ForkedRanks, ReportAnExitStatusAndAnEarlyExit) {
  ForkedRanks ranks(2, [](ForkedRank& rank) { std::exit(rank.rank() == 0 ? 3 : 0); });
  const auto reports = ranks.join();
  EXPECT_EQ(reports[0].end, RankReport::End::kExited);
  EXPECT_EQ(reports[0].code, 3);
  EXPECT_EQ(reports[1].end, RankReport::End::kFailed);
}

TEST(ForkedRanks, HungRankIsReportedWithItsStackAndKilled) {
  testing::internal::CaptureStderr();
  pid_t hung = 0;
  std::vector<RankReport> reports;
  // The other one needs longer on a busy machine.
  for (std::chrono::seconds limit = 1s; limit <= 64s; limit *= 4) {
    ForkedRanks ranks(2, [](ForkedRank& rank) { rank.rank() == 0 ? pause() : 0; },
                      {.limit = limit});
    hung = ranks.process(0);
    reports = ranks.join();
    EXPECT_EQ(reports[0].end, RankReport::End::kHung);
    if (reports[1].end != RankReport::End::kHung) {
      break;
    }
  }
  EXPECT_TRUE(reports[1].passed()) << reports[1];
  EXPECT_NE(kill(hung, 0), 0);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("stack of thread " + std::to_string(hung)));
  EXPECT_THAT(said, HasSubstr("pause"));
}

TEST(ForkedRanks, HearingARankThatEndedIsAnError) {
  ForkedRanks ranks(1, [](ForkedRank&) { throw std::runtime_error("too early"); });
  EXPECT_THROW(static_cast<void>(ranks.hear(0)), std::runtime_error);
}

TEST(ForkedRanks, EnvironmentIsSetBeforeTheBody) {
  run_forked_ranks(1, [](ForkedRank&) { EXPECT_STREQ(std::getenv("UCX_TLS"), "tcp,self"); },
                   {.environment = {{"UCX_TLS", "tcp,self"}}});
}

}  // namespace
}  // namespace gtopk::test
