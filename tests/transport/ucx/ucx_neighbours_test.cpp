// Tests of the UCX transport between ranks of one machine: a death in shared memory, children that
// outlive the rank that started them, and ranks that share memory but no network.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/forked_ranks.hpp"
#include "tests/transport/ucx/job.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kTcp = "tcp,self";
constexpr const char* kSharedMemory = "posix,sysv,self";

ForkedRanks::Options over(const char* tls) {
  return {.limit = 100s, .environment = {{"UCX_TLS", tls}}};
}

/// Process descriptors that this process holds: one for each peer connected over shared memory.
std::ptrdiff_t watched_processes() {
  const std::filesystem::directory_iterator open_files("/proc/self/fd");
  return std::count_if(begin(open_files), end(open_files), [](const auto& entry) {
    std::error_code gone;
    return read_symlink(entry.path(), gone).string().find("pidfd") != std::string::npos;
  });
}

// The victim stays a zombie until join(): its process id is not reused, and /proc still shows it.
TEST(UcxNeighbours, KilledPeer_IsReportedAndSurvivorsWorkOn) {
  ForkedRanks ranks(
      3,
      [](ForkedRank& self) {
        Job job(self);
        if (self.rank() == 2) {
          exchange_a_message(job, job.peers[0]);
          exchange_a_message(job, job.peers[1]);
          job.until([] { return false; });
          return;
        }
        exchange_a_message(job, job.peers[2]);
        Message waiting(std::size_t{100});
        waiting.recv(*job.transport, job.peers[2], 2);
        EXPECT_EQ(watched_processes(), 1);
        self.say("waits");
        expect_to_be_told(job, job.peers[2], waiting);
        EXPECT_EQ(watched_processes(), 0);
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        exchange_a_message(job, other);
        EXPECT_EQ(watched_processes(), 1);
        EXPECT_TRUE(job.until([&] { return !job.transport->spent(); })) << "it wrote nothing";
        job.transport->expect_departure(other);
        job.size = 2;  // the survivors
        job.meet("leave");
        EXPECT_TRUE(job.transport->take_failures().empty());
        job.transport->close(kWatchdog);
        EXPECT_EQ(watched_processes(), 0);
      },
      over(kSharedMemory));
  EXPECT_EQ(ranks.hear(0), "waits");
  EXPECT_EQ(ranks.hear(1), "waits");
  ranks.signal(2, SIGKILL);
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
  EXPECT_TRUE(reports[1].passed()) << reports[1];
  EXPECT_TRUE(reports[2].signalled(SIGKILL)) << reports[2];
}

TEST(UcxNeighbours, PeerKilledBeforeFirstMessage_IsReported) {
  ForkedRanks ranks(
      2,
      [](ForkedRank& self) {
        Job job(self);
        if (self.rank() == 1) {
          self.say("known");
          static_cast<void>(self.hear());
        }
        ASSERT_EQ(self.hear(), "killed");
        Message waiting(std::size_t{100});
        waiting.recv(*job.transport, job.peers[1], 2);
        expect_to_be_told(job, job.peers[1], waiting);
        job.transport->close(1s);
      },
      over(kSharedMemory));
  EXPECT_EQ(ranks.hear(1), "known");
  ranks.signal(1, SIGKILL);
  ranks.tell(0, "killed");
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
}

// What a rank has sent arrives, however soon it then ends, and before its end is reported.
TEST(UcxNeighbours, MessagesBeforeKill_ArriveBeforeFailureReport) {
  constexpr int kMessages = 40;
  ForkedRanks ranks(
      2,
      [](ForkedRank& self) {
        Job job(self);
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        exchange_a_message(job, other);
        std::vector<std::unique_ptr<Message>> messages;
        for (Tag tag = 10; tag < 10 + kMessages; ++tag) {
          messages.push_back(std::make_unique<Message>(self.rank() == 1 ? pattern(1000, 1)
                                                                        : std::string(1000, '\0')));
          if (self.rank() == 0) {
            messages.back()->recv(*job.transport, other, tag);
          }
        }
        if (self.rank() == 1) {
          ASSERT_EQ(self.hear(), "send and die");
          for (Tag tag = 10; tag < 10 + kMessages; ++tag) {
            messages[tag - 10]->send(*job.transport, other, tag);
          }
          ASSERT_TRUE(std::all_of(messages.begin(), messages.end(),
                                  [](const auto& m) { return m->done(); }));
          kill(getpid(), SIGKILL);
        }
        self.say("posted");
        ASSERT_EQ(self.hear(), "dead");
        ASSERT_FALSE(next_failures(job).empty());
        for (const auto& message : messages) {
          EXPECT_EQ(message->request.status(), Status::kOk);
          EXPECT_TRUE(message->bytes == pattern(1000, 1));
        }
        job.transport->close(1s);
      },
      over(kSharedMemory));
  EXPECT_EQ(ranks.hear(0), "posted");
  ranks.tell(1, "send and die");
  EXPECT_THROW(static_cast<void>(ranks.hear(1)), std::runtime_error);  // it is dead
  ranks.tell(0, "dead");
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
  EXPECT_TRUE(reports[1].signalled(SIGKILL)) << reports[1];
}

// --- children that outlive their parent

/// This process's network sockets that a program started by it would inherit.
std::ptrdiff_t sockets_open_on_exec() {
  std::ptrdiff_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    int domain = 0;
    socklen_t size = sizeof(domain);
    if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_INET &&
        (fcntl(descriptor, F_GETFD) & FD_CLOEXEC) == 0) {
      ++count;
    }
  }
  return count;
}

enum class Child : std::uint8_t { kForked, kExecuted };

/// Starts a child that lives until the other end of `lifeline` closes.
void start(Child kind, int lifeline, int channel) {
  if (kind == Child::kForked) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(channel);
      char ignored = 0;
      const bool ended = read(lifeline, &ignored, 1) == 0;
      exit(ended ? 0 : 1);  // with all exit handlers, as a program would
    }
    return;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, lifeline, STDIN_FILENO);
  std::string name = "cat";
  std::array<char*, 2> arguments = {name.data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawnp(&child, "cat", &actions, nullptr, arguments.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
}

class ChildOfARank : public testing::TestWithParam<Child> {};

INSTANTIATE_TEST_SUITE_P(Kinds, ChildOfARank, testing::Values(Child::kForked, Child::kExecuted),
                         [](const auto& test) {
                           return test.param == Child::kForked ? "Forked" : "Executed";
                         });

TEST_P(ChildOfARank, OutlivesItAndTheOthersAreToldOverTcp) {
  std::array<int, 2> lifeline{};
  ASSERT_EQ(pipe(lifeline.data()), 0);
  ForkedRanks ranks(
      3,
      [&](ForkedRank& self) {
        close(lifeline[1]);
        Job job(self);
        if (self.rank() == 1) {
          exchange_a_message(job, job.peers[0]);
          // A rank usually starts other programs long after its connections were made.
          ASSERT_TRUE(GetParam() == Child::kForked ||
                      job.until([] { return sockets_open_on_exec() == 0; }));
          start(GetParam(), lifeline[0], self.channel());
          self.say("has a child");
          job.until([] { return false; });
          return;
        }
        Message waiting(std::size_t{100});
        if (self.rank() == 0) {  // is connected
          exchange_a_message(job, job.peers[1]);
          waiting.recv(*job.transport, job.peers[1], 2);
          EXPECT_EQ(watched_processes(), 0);  // TCP needs none
        }
        self.say("met");
        ASSERT_EQ(self.hear(), "killed");
        if (self.rank() == 2) {  // would have to connect
          waiting.recv(*job.transport, job.peers[1], 2);
        }
        expect_to_be_told(job, job.peers[1], waiting);
        job.transport->close(1s);
      },
      over(kTcp));
  close(lifeline[0]);
  EXPECT_EQ(ranks.hear(0), "met");
  EXPECT_EQ(ranks.hear(2), "met");
  EXPECT_EQ(ranks.hear(1), "has a child");
  ranks.signal(1, SIGKILL);
  ranks.tell(0, "killed");
  ranks.tell(2, "killed");
  const auto reports = ranks.join();
  close(lifeline[1]);
  EXPECT_TRUE(reports[0].passed()) << reports[0];
  EXPECT_TRUE(reports[2].passed()) << reports[2];
}

TEST(UcxNeighbours, ForkedChildExit_LeavesParentsConnectionsAlone) {
  run_forked_ranks(
      2,
      [](ForkedRank& self) {
        leave_allocations_behind();  // by the child
        Job job(self);
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        exchange_a_message(job, other);
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
          close(self.channel());
          exit(0);
        }
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        exchange_a_message(job, other);
        job.leave();
        EXPECT_TRUE(job.transport->take_failures().empty());
      },
      over("tcp,posix,sysv,self"));
}

// --- shared memory but separate networks: two containers on one machine

bool enter_own_network() {
  return unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
}

bool own_network_can_be_had() {
  const pid_t child = fork();
  if (child == 0) {
    _exit(enter_own_network() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// How often a transport slept, and how often to the end.
struct Sleeps {
  int all = 0;
  int whole = 0;
};

/// Like the engine waits: in the transport's longest sleep, until something arrives.
template <typename Done>
bool sleep_until(Transport& transport, const Done& done, Sleeps& sleeps) {
  constexpr auto kLongest = 50ms;
  return progress_until(
      [&] {
        const bool moved = transport.progress();
        if (!moved) {
          const auto begin = std::chrono::steady_clock::now();
          transport.wait(kLongest);
          ++sleeps.all;
          sleeps.whole += std::chrono::steady_clock::now() - begin > kLongest * 9 / 10 ? 1 : 0;
        }
        return moved;
      },
      done);
}

// Neither can wake the other: UCX's wake-ups are sockets of a network namespace. A busy machine
// prolongs some sleeps; otherwise all would be whole.
TEST(UcxNeighbours, CrossNamespaceRoundTrips_RarelySleepToTimeout) {
  if (!own_network_can_be_had()) {
    GTEST_SKIP() << "this process may not make network namespaces: run it as root";
  }
  constexpr int kRoundTrips = 200;
  run_forked_ranks(
      2,
      [](ForkedRank& self) {
        Job job(self, [] { ASSERT_TRUE(enter_own_network()); });
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        exchange_a_message(job, other);
        Sleeps sleeps;
        for (int i = 0; i < kRoundTrips; ++i) {
          for (const std::size_t size : {std::size_t{8}, std::size_t{100'000}}) {
            Message in(size);
            in.recv(*job.transport, other, 2);
            Message out(pattern(size, static_cast<unsigned>(i)));
            if (self.rank() == 0) {
              out.send(*job.transport, other, 2);
            }
            ASSERT_TRUE(sleep_until(*job.transport, [&] { return in.done(); }, sleeps));
            if (self.rank() == 1) {
              out.send(*job.transport, other, 2);
            }
            ASSERT_TRUE(sleep_until(*job.transport, [&] { return out.done(); }, sleeps));
            ASSERT_TRUE(in.bytes == out.bytes);
          }
        }
        EXPECT_LE(2 * sleeps.whole, sleeps.all);
        job.leave();
        EXPECT_TRUE(job.transport->take_failures().empty());
      },
      over(kSharedMemory));
}

TEST(UcxNeighbours, IdleCrossNamespaceReceive_SleepsWithoutPolling) {
  if (!own_network_can_be_had()) {
    GTEST_SKIP() << "this process may not make network namespaces: run it as root";
  }
  run_forked_ranks(
      2,
      [](ForkedRank& self) {
        Job job(self, [] { ASSERT_TRUE(enter_own_network()); });
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        exchange_a_message(job, other);
        job.meet("met");
        Message idle(std::size_t{8});
        idle.request.connects = false;
        idle.recv(*job.transport, other, 2);
        job.transport->wait(1ms);
        const auto sleeps = [&](int waits) {
          rusage before{};
          rusage after{};
          getrusage(RUSAGE_THREAD, &before);
          for (const auto end = std::chrono::steady_clock::now() + waits * 50ms;
               std::chrono::steady_clock::now() < end;) {
            job.transport->wait(50ms);
          }
          getrusage(RUSAGE_THREAD, &after);
          return after.ru_nvcsw - before.ru_nvcsw;
        };
        EXPECT_LT(sleeps(5), 40);  // with sleeps of 1 ms: 250 or more
        job.transport->cancel(idle.request);
        ASSERT_TRUE(job.until([&] { return idle.done(); }));
        job.leave();
      },
      over(kSharedMemory));
}

}  // namespace
}  // namespace gtopk::test
