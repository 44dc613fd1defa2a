// Communicator: a rank of a group dies, in real processes. Every other rank's operations fail with
// an error that names the rank, its host, the operation and its number: at once if the rank was
// killed, at the operation's timeout if it was stopped. Then the others leave as usual.
//
// One job has seven groups, one for each kind of operation, which lose a rank each, so that their
// waits overlap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/transport/bootstrap/prefix_store.hpp"
#include "tests/communicator/member.hpp"
#include "tests/communicator/work.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

enum class Moment : std::uint8_t {
  kBeforeAnyMessage,  ///< the ranks know each other's addresses, nothing more
  kBeforeItsCall,     ///< the others have called, after operations that succeeded
  kInTheStream,       ///< operations follow one another, some in flight
};

/// One way to die, in seven groups.
struct Job {
  const char* tls;
  int signal;
  Moment moment;
  std::uint32_t ranks;  ///< in each group; 0: cycles through 2 to 5
  /// The network or, for shared memory, the kernel reports the end of a process.
  [[nodiscard]] bool noticed_at_once() const { return signal == SIGKILL; }
};

struct Death {
  std::string group;
  Plan plan;
  std::uint32_t victim;
  int first_seat;  ///< of the group's ranks within the job
};

/// With a sanitizer groups of each size die in one job, and not in one after another.
constexpr std::size_t kJobs = kSanitized ? 10 : 19;
static_assert(kSanitized || kJobs * kKinds.size() == 133);

/// The timeout, where nothing reports the death.
constexpr std::chrono::seconds kTimeout = 2s;
/// From an operation's call to its error: an upper bound for a death that is noticed at once, and
/// more than timeout plus probe, 4 s, for the others.
constexpr std::chrono::seconds kSoon = 10s;
/// The end of group and process waits, at worst, for seven things one after the other, 2 s each.
constexpr std::chrono::seconds kLeaving = 30s;
/// Operations before the one that the victim never calls.
constexpr std::uint64_t kGoodOnes = 2;
/// In the stream the victim calls this many operations and dies at the end of one of them.
constexpr std::uint64_t kVictimCalls = 6;
constexpr std::uint64_t kVictimEnds = 3;
constexpr std::uint64_t kOthersCall = 10;

std::ostream& operator<<(std::ostream& out, const Job& job) {
  return out << (job.signal == SIGKILL ? "killed" : "stopped") << " over " << job.tls;
}

std::vector<Job> jobs() {
  std::vector<Job> all;
  for (const Moment moment :
       {Moment::kBeforeAnyMessage, Moment::kBeforeItsCall, Moment::kInTheStream}) {
    if (kSanitized) {
      all.push_back({kTcp, SIGKILL, moment, 0});
      continue;
    }
    for (const std::uint32_t ranks : {2U, 3U, 4U, 5U}) {
      all.push_back({kTcp, SIGKILL, moment, ranks});
    }
  }
  all.push_back({kSharedMemory, SIGKILL, Moment::kBeforeAnyMessage, 0});
  for (const Moment moment : {Moment::kBeforeItsCall, Moment::kInTheStream}) {
    all.push_back({kSharedMemory, SIGKILL, moment, 0});
    all.push_back({kTcp, SIGSTOP, moment, 0});
    all.push_back({kSharedMemory, SIGSTOP, moment, 0});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Job>& instance) {
  const Job& job = instance.param;
  constexpr std::array kMoments = {"BeforeAnyMessage", "BeforeItsCall", "InTheStream"};
  return fmt::format("{}_{}_{}_{}", job.signal == SIGKILL ? "Killed" : "Stopped",
                     name_of_transport(job.tls), kMoments.at(static_cast<std::size_t>(job.moment)),
                     job.ranks == 0 ? std::string("Mixed") : fmt::format("P{}", job.ranks));
}

std::vector<Death> deaths_of(const Job& job) {
  std::vector<Death> deaths;
  int seats = 0;
  for (std::uint32_t number = 0; number < kKinds.size(); ++number) {
    const std::uint32_t ranks = job.ranks != 0 ? job.ranks : 2 + number % 4;
    const std::uint32_t victim = (number + static_cast<std::uint32_t>(job.moment)) % ranks;
    deaths.push_back(
        {fmt::format("group{}", number), Plan(kKinds.at(number), ranks), victim, seats});
    seats += static_cast<int>(ranks);
  }
  return deaths;
}

/// One rank of one group of the job.
class Seat {
 public:
  Seat(ForkedRank& self, const Job& job, const Death& death)
      : self_(self),
        job_(job),
        death_(death),
        rank_(static_cast<std::uint32_t>(self.rank() - death.first_seat)),
        store_(self.store()),
        keys_(*store_, death.group + "/test/"),
        works_(kGoodOnes + kOthersCall + 1, Work(death.plan, rank_)),
        calls_(works_.size()),
        member_(store_, death.group, rank_, death.plan.ranks) {}

  void play() {
    keys_.set(fmt::format("pid/{}", rank_), std::to_string(getpid()));
    // All have started: no operation waits for a rank that is still starting.
    wait_for_all(*store_, "started", self_.size());
    if (job_.moment != Moment::kBeforeAnyMessage) {
      run_good_ones();
    }
    if (rank_ == death_.victim) {
      die_in_time();
    } else {
      outlive();
    }
  }

 private:
  void run_good_ones() {
    for (; next_ < kGoodOnes; ++next_) {
      works_[next_].submit(member_.group(), calls_[next_].call(kWatchdog));
    }
    for (std::uint64_t i = 0; i < kGoodOnes; ++i) {
      const Ending ending = calls_[i].wait();
      ASSERT_TRUE(ending.good()) << ending.text;
      ASSERT_EQ(works_[i].wrong_result(), "");
    }
  }

  // The victim.

  void die() {
    self_.say("dies");
    kill(getpid(), job_.signal);
  }

  void die_in_time() {
    if (job_.moment == Moment::kInTheStream) {
      const std::uint64_t last = next_ + kVictimEnds - 1;
      for (const std::uint64_t end = next_ + kVictimCalls; next_ < end; ++next_) {
        std::function<void()> then;
        if (next_ == last) {
          then = [this] { die(); };
        }
        works_[next_].submit(member_.group(), calls_[next_].call(kWatchdog, std::move(then)));
      }
    } else {
      if (job_.moment == Moment::kBeforeItsCall) {
        for (std::uint32_t rank = 0; rank < death_.plan.ranks; ++rank) {
          if (rank != rank_) {
            static_cast<void>(keys_.get(fmt::format("called/{}", rank), kWatchdog));
          }
        }
      }
      die();
    }
    static_cast<void>(self_.hear());  // for ever
  }

  // The others.

  void outlive() {
    const std::string process = keys_.get(fmt::format("pid/{}", death_.victim), kWatchdog);
    std::array<char, 256> host{};
    ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
    named_ = fmt::format("rank {} (host {}, pid {})", death_.victim, host.data(), process);
    if (job_.moment == Moment::kBeforeAnyMessage) {
      ASSERT_EQ(self_.hear(), "it is dead");
    }

    const std::uint64_t first = next_;
    const bool stream = job_.moment == Moment::kInTheStream;
    const std::uint64_t may_end = stream ? kVictimCalls : 0;
    const auto timeout = job_.noticed_at_once() ? kWatchdog : kTimeout;
    for (const std::uint64_t end = first + (stream ? kOthersCall : 1); next_ < end; ++next_) {
      works_[next_].submit(member_.group(), calls_[next_].call(timeout));
    }
    keys_.set(fmt::format("called/{}", rank_), "");
    for (std::uint64_t i = first; i < next_; ++i) {
      const Ending ending = calls_[i].wait(kSoon);
      if (ending.good()) {
        EXPECT_LT(i - first, may_end) << "it needed the victim";
        EXPECT_EQ(works_[i].wrong_result(), "");
      } else {
        expect_cause(ending, i + 1);
        EXPECT_EQ(works_[i].touched(), "");
      }
    }
    // The group has failed.
    works_[next_].submit(member_.group(), calls_[next_].call(kWatchdog));
    expect_cause(calls_[next_].wait(kSoon), next_ + 1);
    EXPECT_LT(member_.leave(), kLeaving);
    self_.say("left");
  }

  void expect_cause(const Ending& ending, std::uint64_t sequence) const {
    ASSERT_FALSE(ending.good());
    EXPECT_EQ(*ending.error, ErrorKind::kPeerFailed) << ending.text;
    EXPECT_THAT(ending.text,
                HasSubstr(fmt::format("{} #{} of group '{}'", name_of_operation(death_.plan.kind),
                                      sequence, death_.group)));
    // The error names the victim and nobody else. The first of the last two texts is what an
    // operation gets that starts after the connection has broken.
    const auto says = [&](const char* what) {
      return HasSubstr(fmt::format(": {} {}", named_, what));
    };
    if (job_.noticed_at_once()) {
      EXPECT_THAT(ending.text, AnyOf(says("has left or its connection is closed"), says("is gone"),
                                     says("cannot be reached")));
    } else if (job_.tls == kSharedMemory && job_.moment == Moment::kInTheStream) {
      // A rank that stops in the middle of a write to another's shared memory can leave a gap in
      // the one queue through which the other rank hears everybody: it is deaf from then on, and
      // ranks that probe it report it as silent, too. Of ranks that learn the cause earlier, it
      // sees only that they have left.
      EXPECT_THAT(
          ending.text,
          AnyOf(AllOf(HasSubstr(named_), HasSubstr(" timed out after "), HasSubstr(" not answer")),
                HasSubstr(
                    fmt::format(" is gone: its process has ended (noticed by rank {})", rank_))));
    } else {
      EXPECT_THAT(ending.text, AllOf(says("does not answer"), HasSubstr(" timed out after ")));
    }
  }

  ForkedRank& self_;
  const Job& job_;
  const Death& death_;
  std::uint32_t rank_;
  std::shared_ptr<KeyValueStore> store_;
  bootstrap::PrefixStore keys_;
  std::vector<Work> works_;
  std::vector<Pending> calls_;
  Member member_;
  std::uint64_t next_ = 0;  ///< number of the next operation
  std::string named_;       ///< the victim, as errors name it
};

/// What the rank says next; if it ended or hung instead, an empty string and a failed expectation.
std::string said_by(ForkedRanks& ranks, int seat) {
  try {
    return ranks.hear(seat);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return {};
  }
}

class DeadRank : public testing::TestWithParam<Job> {};

TEST_P(DeadRank, InAnyOperation_IsNamedByTheRemainingRanks) {
  const Job& job = GetParam();
  const std::vector<Death> deaths = deaths_of(job);
  const auto death_of = [&](int seat) -> const Death& {
    return *std::find_if(deaths.rbegin(), deaths.rend(),
                         [&](const Death& death) { return death.first_seat <= seat; });
  };
  const auto is_victim = [&](int seat) {
    const Death& death = death_of(seat);
    return seat == death.first_seat + static_cast<int>(death.victim);
  };
  const int seats = deaths.back().first_seat + static_cast<int>(deaths.back().plan.ranks);
  ForkedRanks ranks(seats, [&](ForkedRank& self) { Seat(self, job, death_of(self.rank())).play(); },
                    {.limit = std::chrono::seconds(kSanitized ? 240 : 90),
                     .environment = {{"UCX_TLS", job.tls}}});

  for (const Death& death : deaths) {
    const int victim = death.first_seat + static_cast<int>(death.victim);
    EXPECT_EQ(said_by(ranks, victim), "dies") << death.group;
    ranks.signal(victim, job.signal);  // it has already done so itself; now it is certain
    if (job.moment != Moment::kBeforeAnyMessage) {
      continue;
    }
    for (std::uint32_t rank = 0; rank < death.plan.ranks; ++rank) {
      if (rank != death.victim) {
        ranks.tell(death.first_seat + static_cast<int>(rank), "it is dead");
      }
    }
  }
  for (int seat = 0; seat < seats; ++seat) {
    if (!is_victim(seat)) {
      EXPECT_EQ(said_by(ranks, seat), "left");
    }
  }
  for (int seat = 0; seat < seats; ++seat) {
    if (is_victim(seat)) {
      ranks.signal(seat, SIGKILL);  // join() waits for stopped ranks, too
    }
  }
  std::size_t died = 0;
  for (const RankReport& report : ranks.join()) {
    SCOPED_TRACE(death_of(report.rank).group);
    if (is_victim(report.rank)) {
      EXPECT_TRUE(report.signalled(SIGKILL)) << report;
      ++died;
    } else {
      EXPECT_TRUE(report.passed()) << report;
    }
  }
  EXPECT_EQ(died, kKinds.size());
}

INSTANTIATE_TEST_SUITE_P(Every, DeadRank, testing::ValuesIn(jobs()), name_of);

TEST(Deaths, AreAsManyAsAnnounced) { EXPECT_EQ(jobs().size(), kJobs); }

}  // namespace
}  // namespace gtopk::test
