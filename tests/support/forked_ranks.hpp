// Test support: ranks as real processes, forked from the test, which can be killed, stopped and
// made to wait for one another. It knows no transport: a rank's body starts its own, and finds the
// others through `rendezvous`.
//
//   run_forked_ranks(4, [](ForkedRank& rank) {
//     auto store = rank.store();
//     store->set(fmt::format("address/{}", rank.rank()), ...);
//     EXPECT_EQ(...);                        // EXPECT_ and ASSERT_ work, and so does throwing
//   });
//
//   ForkedRanks ranks(3, body);              // the longer form
//   EXPECT_EQ(ranks.hear(1), "ready");       // what rank 1's body said with rank.say("ready")
//   ranks.signal(1, SIGKILL);                // or SIGSTOP, SIGCONT
//   ranks.tell(0, "go");                     // what rank 0's body gets from rank.hear()
//   const auto reports = ranks.join();
//   EXPECT_TRUE(reports[0].passed()) << reports[0];
//
// Rules: the parent must not have started UCX (or any thread that is still running) before the
// fork: keep forked tests in a test program of their own. The parent serves the rendezvous, so it
// outlives every rank. A rank that is still running when the time is up is a failure: the stacks of
// its threads go to stderr and it is killed. Ranks die with the parent. A body that returns leaves
// by exit(), so a crash on the way out is seen too.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/transport/bootstrap/tcp_store.hpp"

namespace gtopk::test {

/// What a rank's body gets: its rank, and a channel to the test.
class ForkedRank {
 public:
  ForkedRank(int rank, int size, bootstrap::Endpoint rendezvous, int channel)
      : rank_(rank), size_(size), rendezvous_(std::move(rendezvous)), channel_(channel) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const bootstrap::Endpoint& rendezvous() const { return rendezvous_; }
  /// A client of the rendezvous.
  [[nodiscard]] std::unique_ptr<KeyValueStore> store() const;
  /// The descriptor behind say() and hear().
  [[nodiscard]] int channel() const { return channel_; }

  /// Goes to the parent's hear(rank); at most 64 KiB.
  void say(std::string_view text) const;
  /// Waits for the parent's next tell(rank, ...). Throws std::runtime_error if the parent is gone.
  [[nodiscard]] std::string hear() const;

 private:
  int rank_;
  int size_;
  bootstrap::Endpoint rendezvous_;
  int channel_;
};

/// How a rank ended.
struct RankReport {
  enum class End : std::uint8_t { kPassed, kFailed, kExited, kSignalled, kHung };

  int rank = 0;
  End end = End::kFailed;
  int code = 0;      ///< exit status for kExited, signal for kSignalled
  std::string text;  ///< the failures, with file and line

  [[nodiscard]] bool passed() const { return end == End::kPassed; }
  [[nodiscard]] bool signalled(int number) const {
    return end == End::kSignalled && code == number;
  }
};
std::ostream& operator<<(std::ostream& out, const RankReport& report);

class ForkedRanks {
 public:
  using Body = std::function<void(ForkedRank&)>;

  struct Options {
    /// A watchdog, not an expectation: from the fork to the end of join().
    std::chrono::seconds limit{60};
    /// Environment variables set in each rank before its body, such as {"UCX_TLS", "tcp,self"}.
    std::map<std::string, std::string> environment{};
    /// Of the ranks' store. An address of this process that all ranks reach.
    std::string address = "127.0.0.1";
    /// Processes whose namespaces (network, mounts, IPC, host name) the ranks enter, dealt in turn;
    /// none: they stay in the parent's.
    std::vector<pid_t> hosts{};
  };

  ForkedRanks(int size, const Body& body) : ForkedRanks(size, body, Options()) {}
  ForkedRanks(int size, const Body& body, const Options& options);
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;
  ForkedRanks(ForkedRanks&&) = delete;
  ForkedRanks& operator=(ForkedRanks&&) = delete;
  /// Kills, by process id, each rank that is still running.
  ~ForkedRanks();

  /// Where the ranks' store is served, for tests that read or write it too.
  [[nodiscard]] const bootstrap::Endpoint& rendezvous() const { return rendezvous_; }
  [[nodiscard]] pid_t process(int rank) const { return children_.at(index(rank)).process; }

  void tell(int rank, std::string_view text);
  /// What the rank says next. Throws std::runtime_error if it ends, or the time runs out, before it
  /// says anything.
  [[nodiscard]] std::string hear(int rank);
  /// SIGKILL, SIGSTOP, SIGCONT ...
  void signal(int rank, int number);

  /// Waits for all ranks (a stopped one must be continued or killed first) and reports how each
  /// ended.
  [[nodiscard]] std::vector<RankReport> join();

 private:
  struct Child {
    pid_t process = -1;
    bootstrap::Descriptor channel;
    std::vector<std::string> said;  ///< not yet heard, oldest first
    std::optional<std::string> verdict;
    int stacks = 0;       ///< stacks of a hung rank
    bool closed = false;  ///< the channel has been closed
    bool reaped = false;
    int status = 0;
  };

  [[nodiscard]] static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[noreturn]] static void run_child(ForkedRank& rank, const Body& body, const Options& options);
  bool listen(std::chrono::steady_clock::time_point until);
  void read_from(Child& child);
  void print_stacks(Child& child);
  [[nodiscard]] RankReport conclude(int rank);

  bootstrap::Endpoint rendezvous_;
  std::vector<Child> children_;
  std::chrono::steady_clock::time_point deadline_;
  std::optional<bootstrap::RendezvousServer> server_;
};

/// Runs `body` on `size` ranks and expects all of them to pass.
void run_forked_ranks(int size, const ForkedRanks::Body& body,
                      const ForkedRanks::Options& options = ForkedRanks::Options());

}  // namespace gtopk::test
