// Communicator: random failures of real processes: a rank is killed, stopped, exits, leaves, calls
// something else or never calls, at a random point of a stream of operations. Every other rank gets
// an error within the operation's timeout plus 5 s, and the error names that rank.
//
// One round is ten failures, five over each network, side by side in groups of one job, and
// different ones with every --gtest_repeat: tests/torch/processes/test_random_failures.py runs 200.
// With the variable GTOPK_TEST_HOSTS="ADDRESS PID..." the ranks enter the namespaces of these
// processes, the hosts of a lab, and both networks are TCP between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/transport/bootstrap/prefix_store.hpp"
#include "tests/communicator/member.hpp"
#include "tests/communicator/work.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

enum class Fault : std::uint8_t { kKilled, kStopped, kExits, kLeaves, kDiffers, kNeverCalls };
constexpr std::array kFaults = {Fault::kKilled, Fault::kStopped, Fault::kExits,
                                Fault::kLeaves, Fault::kDiffers, Fault::kNeverCalls};
constexpr std::array kFaultNames = {"killed", "stopped", "exits",
                                    "leaves", "differs", "never calls"};

constexpr std::size_t kGroupsPerJob = 5;
/// Of the operation that fails, and of what is called after it.
constexpr std::chrono::milliseconds kTimeout = kSanitized ? 6s : 3s;
/// Of a stream in which a rank dies. It must not end the first operations, in which the ranks
/// connect, where the machine has other work.
constexpr std::chrono::milliseconds kStreamTimeout = 4 * kTimeout;
/// Of operations that end without it.
constexpr std::chrono::milliseconds kPatience = kWatchdog;
/// How long after its timeout an operation's caller may have to wait for the error.
constexpr std::chrono::milliseconds kGrace = 5s;

struct Failure {
  std::string group;
  std::uint32_t ranks;
  std::uint32_t victim;
  Fault fault;
  std::vector<Kind> before;  ///< operations that all ranks call
  Kind at;                   ///< the operation that fails, unless one of `before` does
  std::size_t called;        ///< how many of `before` a victim that dies in the stream calls
  bool in_the_stream;        ///< it dies with operations in flight
  int first_seat;

  [[nodiscard]] bool dies() const { return fault <= Fault::kExits; }
  /// Of the operation that fails.
  [[nodiscard]] std::chrono::milliseconds timeout() const {
    if (fault == Fault::kDiffers) {
      return kPatience;
    }
    return in_the_stream ? kStreamTimeout : kTimeout;
  }
  [[nodiscard]] std::string words() const {
    return fmt::format(
        "{}: rank {} of {} {}{}, after {} of {} operations, then {}", group, victim, ranks,
        kFaultNames.at(static_cast<std::size_t>(fault)), in_the_stream ? " in the stream" : "",
        in_the_stream ? called : before.size(), before.size(), name_of_operation(at));
  }
};

/// All operations of a kind share a plan, as plans take a while to compute.
const Plan& plan_of(Kind kind, std::uint32_t ranks) {
  static std::map<std::pair<Kind, std::uint32_t>, std::unique_ptr<const Plan>> plans;
  auto& plan = plans[{kind, ranks}];
  if (!plan) {
    plan = std::make_unique<const Plan>(kind, ranks);
  }
  return *plan;
}

std::vector<Failure> drawn(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  const auto kind = [&] { return kKinds.at(below(kKinds.size())); };
  std::vector<Failure> failures;
  int seats = 0;
  for (std::size_t number = 0; number < kGroupsPerJob; ++number) {
    Failure failure;
    failure.group = fmt::format("group{}", number);
    failure.ranks = static_cast<std::uint32_t>(2 + below(4));
    failure.victim = static_cast<std::uint32_t>(below(failure.ranks));
    failure.fault = kFaults.at(below(kFaults.size()));
    for (std::size_t left = below(6); left > 0; --left) {
      failure.before.push_back(kind());
    }
    failure.at = kind();
    failure.called = below(failure.before.size() + 1);
    failure.in_the_stream = failure.dies() && below(2) == 0;
    failure.first_seat = seats;
    seats += static_cast<int>(failure.ranks);
    failures.push_back(std::move(failure));
  }
  for (const Failure& failure : failures) {  // before the fork
    for (const Kind each : failure.before) {
      static_cast<void>(plan_of(each, failure.ranks));
    }
    for (const Kind each : {failure.at, Kind::kBarrier, Kind::kAllReduce}) {
      static_cast<void>(plan_of(each, failure.ranks));
    }
  }
  return failures;
}

/// One rank of one group.
class Seat {
 public:
  Seat(ForkedRank& self, const Failure& failure)
      : self_(self),
        failure_(failure),
        rank_(static_cast<std::uint32_t>(self.rank() - failure.first_seat)),
        store_(self.store()),
        own_store_(self.store()),
        keys_(*own_store_, failure.group + "/test/"),
        calls_(failure.before.size() + 3),
        member_(store_, failure.group, rank_, failure.ranks) {
    works_.reserve(calls_.size());
  }

  void play() {
    SCOPED_TRACE(failure_.words());
    std::array<char, 256> host{};
    ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
    keys_.set(fmt::format("process/{}", rank_),
              fmt::format("(host {}, pid {})", host.data(), getpid()));
    wait_for_all(*store_, "started", self_.size());
    if (rank_ == failure_.victim) {
      fail();
    } else {
      outlive();
    }
  }

 private:
  void call(Kind kind, std::chrono::milliseconds timeout, std::function<void()> then = {}) {
    works_.emplace_back(plan_of(kind, failure_.ranks), rank_);
    began_.push_back(Clock::now());
    timeouts_.push_back(timeout);
    works_.back().submit(member_.group(), calls_[works_.size() - 1].call(timeout, std::move(then)));
  }

  /// Fails the rank if the operation does not end in time.
  Ending ending_of(std::size_t call) {
    const auto deadline = began_[call] + timeouts_[call];
    Ending ending =
        calls_[call].wait(std::max<Clock::duration>(deadline + kGrace - Clock::now(), 1ms));
    latest_ = std::max(
        latest_, std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - deadline));
    return ending;
  }

  void expect_good(std::size_t call) {
    const Ending ending = ending_of(call);
    EXPECT_TRUE(ending.good()) << "operation " << call << ": " << ending.text;
    if (!ending.good()) {
      return;
    }
    EXPECT_EQ(works_[call].wrong_result(), "");
  }

  void all_before() {
    for (const Kind kind : failure_.before) {
      call(kind, kPatience);
    }
    for (std::size_t each = 0; each < failure_.before.size(); ++each) {
      expect_good(each);
    }
  }

  // The victim.

  [[noreturn]] void die() {
    self_.say("fails");
    if (failure_.fault == Fault::kExits) {
      _exit(0);
    }
    kill(getpid(), failure_.fault == Fault::kKilled ? SIGKILL : SIGSTOP);
    for (;;) {
      pause();
    }
  }

  void fail() {
    if (!failure_.dies()) {
      return misbehave();
    }
    if (!failure_.in_the_stream) {
      all_before();
      // Else a rank may be told of its death before its own part of the last one has ended.
      wait_for_the_others("before");
      die();
    }
    for (std::size_t each = 0; each < failure_.called; ++each) {
      std::function<void()> then;
      if (each == failure_.called / 2) {
        then = [this] { die(); };
      }
      call(failure_.before[each], kStreamTimeout, std::move(then));
    }
    if (failure_.called == 0) {
      die();
    }
    static_cast<void>(self_.hear());  // for ever
  }

  void misbehave() {
    all_before();
    self_.say("fails");
    const std::size_t at = works_.size();
    if (failure_.fault == Fault::kDiffers) {
      call(failure_.at == Kind::kBarrier ? Kind::kAllReduce : Kind::kBarrier, kPatience);
      expect_mismatch(ending_of(at));
      call(Kind::kAllReduce, kPatience);
      expect_good(at + 1);
    } else if (failure_.fault == Fault::kNeverCalls) {
      wait_for_the_others();
      call(failure_.at, kTimeout);
      EXPECT_FALSE(ending_of(at).good()) << "the group is over";
    }
    member_.leave();
    say_end();
  }

  // The others.

  void outlive() {
    named_ = fmt::format("rank {} {}", failure_.victim,
                         keys_.get(fmt::format("process/{}", failure_.victim), kWatchdog));
    if (failure_.in_the_stream) {
      for (const Kind kind : failure_.before) {
        call(kind, kStreamTimeout);
      }
    } else {
      all_before();
      keys_.set(fmt::format("before/{}", rank_), "");
    }
    const std::size_t at = failure_.before.size();
    call(failure_.at, failure_.timeout());
    if (failure_.fault == Fault::kDiffers) {
      expect_mismatch(ending_of(at));
      call(Kind::kAllReduce, kPatience);
      expect_good(at + 1);
    } else {
      bool failed = false;
      for (std::size_t each = failure_.in_the_stream ? 0 : at; each <= at; ++each) {
        const Ending ending = ending_of(each);
        if (ending.good()) {
          // An operation may have ended before the failure was noticed, while an earlier one was
          // waiting.
          EXPECT_LT(each, failure_.called) << "it needed the victim";
          EXPECT_EQ(works_[each].wrong_result(), "");
        } else {
          failed = true;
          expect_cause(ending);
          EXPECT_EQ(works_[each].touched(), "");
        }
      }
      EXPECT_TRUE(failed);
      call(Kind::kBarrier, kTimeout);
      expect_cause(ending_of(at + 1));
    }
    // No rank leaves before all have their error: leaving would be an error of its own.
    keys_.set(fmt::format("told/{}", rank_), "");
    wait_for_the_others();
    member_.leave();
    say_end();
  }

  void wait_for_the_others(std::string_view have = "told") {
    for (std::uint32_t rank = 0; rank < failure_.ranks; ++rank) {
      if (rank == failure_.victim) {
        continue;
      }
      static_cast<void>(keys_.get(fmt::format("{}/{}", have, rank), kWatchdog));
    }
  }

  void say_end() { self_.say(fmt::format("{}", latest_.count())); }

  static constexpr std::string_view cause_of(Fault fault) {
    switch (fault) {
      case Fault::kStopped:
        return " not answer";
      case Fault::kNeverCalls:
        return "never entered";
      case Fault::kKilled:
      case Fault::kExits:
      case Fault::kLeaves:
      case Fault::kDiffers:
        break;
    }
    return "";
  }

  void expect_cause(const Ending& ending) const {
    ASSERT_FALSE(ending.good());
    EXPECT_THAT(ending.text, HasSubstr(named_));
    EXPECT_THAT(ending.text, HasSubstr(std::string(cause_of(failure_.fault))));
  }

  void expect_mismatch(const Ending& ending) const {
    ASSERT_FALSE(ending.good());
    EXPECT_EQ(*ending.error, ErrorKind::kMismatch) << ending.text;
    EXPECT_THAT(ending.text, HasSubstr(fmt::format("rank {} (host ", failure_.victim)));
  }

  ForkedRank& self_;
  const Failure& failure_;
  std::uint32_t rank_;
  std::shared_ptr<KeyValueStore> store_;
  /// A client of its own: while a client waits for a key, the group cannot look up addresses
  /// through it, and a rank could not answer the probe of a rank that it has not talked to before.
  std::shared_ptr<KeyValueStore> own_store_;
  bootstrap::PrefixStore keys_;
  std::vector<Work> works_;
  std::vector<Pending> calls_;
  std::vector<Clock::time_point> began_;
  std::vector<std::chrono::milliseconds> timeouts_;
  Member member_;
  std::string named_;                   ///< the victim, as errors name it
  std::chrono::milliseconds latest_{};  ///< after an operation's time-out
};

/// Of GTOPK_TEST_HOSTS, if it is set.
void place(ForkedRanks::Options& options) {
  const char* const text = std::getenv("GTOPK_TEST_HOSTS");
  if (text == nullptr) {
    return;
  }
  std::istringstream words(text);
  words >> options.address;
  for (pid_t process = 0; words >> process;) {
    options.hosts.push_back(process);
  }
}

void run_job(const char* tls, std::uint64_t seed) {
  const std::vector<Failure> failures = drawn(seed);
  const auto of = [&](int seat) -> const Failure& {
    return *std::find_if(failures.rbegin(), failures.rend(),
                         [&](const Failure& failure) { return failure.first_seat <= seat; });
  };
  const auto is_victim = [&](int seat) {
    return seat == of(seat).first_seat + static_cast<int>(of(seat).victim);
  };
  const int seats = failures.back().first_seat + static_cast<int>(failures.back().ranks);
  ForkedRanks::Options options{
      .limit = std::chrono::seconds(kSanitized ? 240 : 120),
      .environment = {{"UCX_TLS", tls},
                      {"GTOPK_CONNECTIONS", std::to_string(1 + seed / 2 % 3)},
                      {"GTOPK_SEND_WINDOW", seed % 3 == 0 ? "0" : "16M"}}};
  place(options);
  ForkedRanks ranks(seats, [&](ForkedRank& self) { Seat(self, of(self.rank())).play(); }, options);
  long latest = 0;
  for (int seat = 0; seat < seats; ++seat) {
    const bool dies = is_victim(seat) && of(seat).dies();
    try {
      if (is_victim(seat)) {
        EXPECT_EQ(ranks.hear(seat), "fails");
      }
      if (!dies) {
        latest = std::max(latest, std::stol(ranks.hear(seat)));
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << of(seat).words() << ": " << error.what();
    }
  }
  for (int seat = 0; seat < seats; ++seat) {
    // join() waits for stopped ranks, too.
    if (is_victim(seat) && of(seat).fault == Fault::kStopped) {
      ranks.signal(seat, SIGKILL);
    }
  }
  for (const RankReport& report : ranks.join()) {
    const Failure& failure = of(report.rank);
    SCOPED_TRACE(failure.words());
    if (!is_victim(report.rank) || !failure.dies()) {
      EXPECT_TRUE(report.passed()) << report;
    } else if (failure.fault == Fault::kExits) {
      EXPECT_THAT(report.text, HasSubstr("left by exit()")) << report;
    } else {
      EXPECT_TRUE(report.signalled(SIGKILL)) << report;
    }
  }
  std::cout << fmt::format(
      "seed {} over {}: {} failures, the latest told {} ms after its time-out\n", seed, tls,
      failures.size(), latest);
}

TEST(RandomFailures, AreToldInTimeToAllOthersWithTheRankThatFailed) {
  static std::uint64_t round = 0;  // of --gtest_repeat
  ++round;
  const bool hosts_apart = std::getenv("GTOPK_TEST_HOSTS") != nullptr;
  for (const std::uint64_t number : {0U, 1U}) {
    const char* const tls = number == 0 || hosts_apart ? kTcp : kSharedMemory;
    const std::uint64_t seed = 2 * round + number;
    SCOPED_TRACE(fmt::format("seed {} over {}", seed, tls));
    run_job(tls, seed);
  }
}

}  // namespace
}  // namespace gtopk::test
