// Tests of the UCX transport between real processes that can be killed: what arrives, and what a
// rank is told when another is gone. Times are a watchdog's.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
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

struct Over {
  const char* name;
  const char* tls;
  const char* connections;
};

class UcxForkedTest : public testing::TestWithParam<Over> {
 protected:
  [[nodiscard]] static ForkedRanks::Options options() {
    return {.limit = 100s,
            .environment = {{"UCX_TLS", GetParam().tls},
                            {"GTOPK_CONNECTIONS", GetParam().connections}}};
  }
  [[nodiscard]] static bool over_tcp() { return std::string(GetParam().tls) == "tcp,self"; }
};

INSTANTIATE_TEST_SUITE_P(Transports, UcxForkedTest,
                         testing::Values(Over{"Tcp", "tcp,self", "1"},
                                         Over{"SharedMemory", "posix,sysv,self", "1"},
                                         Over{"ThreeConnections", "tcp,self", "3"}),
                         [](const auto& test) { return test.param.name; });

TEST_P(UcxForkedTest, EverySizeTravelsThereAndBackUnchanged) {
  run_forked_ranks(
      2,
      [](ForkedRank& self) {
        Job job(self);
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        for (const std::size_t size : sizes_around_limits()) {
          const std::string sent = pattern(size, static_cast<unsigned>(size));
          Message out(self.rank() == 0 ? sent : std::string(size, '\0'));
          Message in(size);
          in.recv(*job.transport, other, size);
          if (self.rank() == 1) {
            ASSERT_TRUE(job.until([&] { return in.done(); })) << size;
            out.bytes = in.bytes;
          }
          out.send(*job.transport, other, size);
          ASSERT_TRUE(job.until([&] { return in.done() && out.done(); })) << size;
          ASSERT_EQ(in.request.status(), Status::kOk) << size;
          ASSERT_EQ(in.request.length(), size);
          ASSERT_TRUE(in.bytes == sent) << size;
        }
        job.leave();
        EXPECT_TRUE(job.transport->take_failures().empty());
      },
      options());
}

TEST_P(UcxForkedTest, MessagesSentJustBeforeLeavingArrive) {
  run_forked_ranks(
      4,
      [](ForkedRank& self) {
        Job job(self);
        std::vector<std::unique_ptr<Message>> messages;
        for (int other = 0; other < job.size; ++other) {
          const auto peer = job.peers[static_cast<std::size_t>(other)];
          messages.push_back(std::make_unique<Message>(std::size_t{150'000}));
          messages.back()->recv(*job.transport, peer, static_cast<Tag>(other));
          messages.push_back(
              std::make_unique<Message>(pattern(150'000, static_cast<unsigned>(self.rank()))));
          messages.back()->send(*job.transport, peer, static_cast<Tag>(self.rank()));
        }
        ASSERT_TRUE(job.until([&] {
          return std::all_of(messages.begin(), messages.end(),
                             [](const auto& m) { return m->done(); });
        }));
        for (std::size_t other = 0; other < messages.size() / 2; ++other) {
          EXPECT_TRUE(messages[2 * other]->bytes == pattern(150'000, static_cast<unsigned>(other)));
        }
        job.leave();
        EXPECT_TRUE(job.transport->take_failures().empty());
      },
      options());
}

TEST(UcxForked, KilledPeerFailsEveryRequestOverTcp) {
  ForkedRanks ranks(3,
                    [](ForkedRank& self) {
                      Job job(self);
                      const PeerId victim = job.peers[2];
                      if (self.rank() == 2) {
                        Message hello(std::size_t{1});
                        Message hello2(std::size_t{1});
                        hello.recv(*job.transport, job.peers[0], 1);
                        hello2.recv(*job.transport, job.peers[1], 1);
                        ASSERT_TRUE(job.until([&] { return hello.done() && hello2.done(); }));
                        self.say("met");
                        job.serve(self);
                        return;
                      }
                      Message hello("x");
                      hello.send(*job.transport, victim, 1);
                      Message waiting(std::size_t{100});      // a receive that is never answered
                      Message large(std::size_t{16} << 20U);  // a rendezvous in flight
                      waiting.recv(*job.transport, victim, 2);
                      if (self.rank() == 0) {
                        large.send(*job.transport, victim, 3);
                      } else {
                        ASSERT_TRUE(job.until([&] { return hello.done(); }));
                      }
                      std::vector<transport::PeerFailure> failures;
                      ASSERT_TRUE(job.until([&] {
                        for (auto& failure : job.transport->take_failures()) {
                          failures.push_back(std::move(failure));
                        }
                        return !failures.empty() && waiting.done() &&
                               (self.rank() == 1 || large.done());
                      }));
                      EXPECT_EQ(waiting.request.status(), Status::kPeerFailed);
                      if (self.rank() == 0) {
                        EXPECT_EQ(large.request.status(), Status::kPeerFailed);
                      }
                      ASSERT_EQ(failures.size(), 1U);
                      EXPECT_EQ(failures[0].peer, victim);
                      EXPECT_FALSE(failures[0].reason.empty());
                      EXPECT_FALSE(job.transport->connected(victim));
                      Message late("late");
                      late.send(*job.transport, victim, 4);
                      EXPECT_EQ(late.request.status(), Status::kPeerFailed);
                      // The surviving ranks still work.
                      const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
                      Message out("still here");
                      Message in(std::size_t{10});
                      in.recv(*job.transport, other, 5);
                      out.send(*job.transport, other, 5);
                      ASSERT_TRUE(job.until([&] { return in.done() && out.done(); }));
                      EXPECT_EQ(in.bytes, "still here");
                      self.say("done");
                    },
                    {.limit = 100s, .environment = {{"UCX_TLS", "tcp,self"}}});
  EXPECT_EQ(ranks.hear(2), "met");
  ranks.signal(2, SIGKILL);
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
  EXPECT_TRUE(reports[1].passed()) << reports[1];
  EXPECT_TRUE(reports[2].signalled(SIGKILL)) << reports[2];
}

TEST(UcxForked, PeerKilledMidMessage_FailsItsReceive) {
  // Large messages in many eager fragments: UCX itself neither completes nor cancels such a
  // half-arrived receive.
  ForkedRanks ranks(
      2,
      [](ForkedRank& self) {
        Job job(self);
        constexpr std::size_t kSize = std::size_t{32} << 20U;
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        if (self.rank() == 1) {
          Message out(kSize);
          out.send(*job.transport, other, 1);
          self.say("sending");
          job.serve(self);
          return;
        }
        Message in(kSize);
        in.recv(*job.transport, other, 1);
        const auto arriving = [&] {
          return std::any_of(in.bytes.begin(), in.bytes.begin() + 1000,
                             [](char c) { return c != 'x'; });
        };
        in.bytes.assign(kSize, 'x');
        ASSERT_TRUE(job.until(arriving));
        self.say("arriving");
        ASSERT_EQ(self.hear(), "killed");
        ASSERT_TRUE(job.until([&] { return !job.transport->take_failures().empty(); }));
        bool moved = false;
        ASSERT_TRUE(progress_until([&] { return moved = job.transport->progress(); },
                                   [&] { return in.done(); }));
        EXPECT_TRUE(moved) << "progress() does not tell that it has completed the receive";
        EXPECT_EQ(in.request.status(), Status::kPeerFailed);
        EXPECT_EQ(in.completions, 1);
        job.transport->close(1s);
      },
      {.limit = 100s, .environment = {{"UCX_TLS", "tcp,self"}, {"UCX_RNDV_THRESH", "inf"}}});
  EXPECT_EQ(ranks.hear(1), "sending");
  EXPECT_EQ(ranks.hear(0), "arriving");
  ranks.signal(1, SIGKILL);
  ranks.tell(0, "killed");
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
  EXPECT_TRUE(reports[1].signalled(SIGKILL)) << reports[1];
}

/// The receiver stops progressing after the first bytes, so the sender is in mid-message when it is
/// stopped.
void expect_no_more_of_a_message(const ForkedRanks::Options& options) {
  ForkedRanks ranks(
      2,
      [](ForkedRank& self) {
        Job job(self);
        constexpr std::size_t kSize = std::size_t{32} << 20U;
        if (self.rank() == 1) {
          Message out(kSize);
          out.send(*job.transport, job.peers[0], 1);
          self.say("sending");
          job.serve(self);
          job.settle_on_request(self);
          return;
        }
        Message in(kSize);
        in.bytes.assign(kSize, 'x');
        in.recv(*job.transport, job.peers[1], 1);
        ASSERT_TRUE(job.until([&] { return in.bytes.front() != 'x'; }));
        self.say("arriving");
        ASSERT_EQ(self.hear(), "stopped");
        EXPECT_TRUE(in.request.pending());
        job.transport->give_up(job.peers[1]);
        ASSERT_TRUE(job.until([&] { return in.done(); }));
        EXPECT_EQ(in.request.status(), Status::kPeerFailed);
        in.bytes.assign(kSize, 'z');
        self.say("given up");
        job.settle_on_request(self);
        EXPECT_EQ(in.bytes.find_first_not_of('z'), std::string::npos);
        job.transport->close(1s);
      },
      options);
  EXPECT_EQ(ranks.hear(1), "sending");
  EXPECT_EQ(ranks.hear(0), "arriving");
  ranks.signal(1, SIGSTOP);
  ranks.tell(0, "stopped");
  EXPECT_EQ(ranks.hear(0), "given up");
  ranks.signal(1, SIGCONT);
  // In turn until neither moves anything more: by then the rest of the message has gone wherever it
  // goes.
  for (bool moved = true; moved;) {
    moved = false;
    for (const int rank : {1, 0}) {
      ranks.tell(rank, "settle");
      moved = ranks.hear(rank) == "moved" || moved;
    }
  }
  ranks.tell(0, "look");
  EXPECT_THROW(static_cast<void>(ranks.hear(0)), std::runtime_error);  // it has left
  ranks.signal(1, SIGKILL);
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
}

TEST_P(UcxForkedTest, ResumedPeer_WritesNoMoreOfFragmentedMessage) {
  ForkedRanks::Options in_fragments = options();
  in_fragments.environment["UCX_RNDV_THRESH"] = "inf";
  expect_no_more_of_a_message(in_fragments);
}

TEST_P(UcxForkedTest, ResumedPeer_WritesNoMoreOfRendezvous) {
  expect_no_more_of_a_message(options());
}

TEST_P(UcxForkedTest, GiveUpOnAStoppedPeerCompletesEverything) {
  ForkedRanks ranks(
      2,
      [](ForkedRank& self) {
        Job job(self);
        if (self.rank() == 1) {
          Message hello(std::size_t{1});
          hello.recv(*job.transport, job.peers[0], 1);
          ASSERT_TRUE(job.until([&] { return hello.done(); }));
          self.say("met");
          job.serve(self);
          return;
        }
        const PeerId victim = job.peers[1];
        Message hello("x");
        hello.send(*job.transport, victim, 1);
        ASSERT_TRUE(job.until([&] { return hello.done(); }));
        ASSERT_EQ(self.hear(), "stopped");
        std::vector<std::unique_ptr<Message>> messages;
        for (Tag tag = 10; tag < 20; ++tag) {
          messages.push_back(std::make_unique<Message>(std::size_t{1} << 20U));
          messages.back()->send(*job.transport, victim, tag);
          messages.push_back(std::make_unique<Message>(std::size_t{100}));
          messages.back()->recv(*job.transport, victim, tag + 100);
        }
        job.settle();
        job.transport->give_up(victim);
        EXPECT_TRUE(job.until([&] {
          return std::all_of(messages.begin(), messages.end(),
                             [](const auto& m) { return m->done(); });
        }));
        for (const auto& message : messages) {
          EXPECT_EQ(message->completions, 1);
        }
        EXPECT_EQ(messages[1]->request.status(), Status::kPeerFailed);
        EXPECT_TRUE(job.transport->take_failures().empty());
        job.transport->close(1s);
      },
      options());
  EXPECT_EQ(ranks.hear(1), "met");
  ranks.signal(1, SIGSTOP);
  ranks.tell(0, "stopped");
  EXPECT_THROW(static_cast<void>(ranks.hear(0)), std::runtime_error);  // it has left
  ranks.signal(1, SIGKILL);
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
}

TEST_P(UcxForkedTest, ExpectedDepartureIsNoFailure) {
  ForkedRanks ranks(
      2,
      [](ForkedRank& self) {
        Job job(self);
        const PeerId other = job.peers[static_cast<std::size_t>(1 - self.rank())];
        Message out("x");
        Message in(std::size_t{1});
        in.recv(*job.transport, other, 1);
        out.send(*job.transport, other, 1);
        ASSERT_TRUE(job.until([&] { return in.done() && out.done(); }));
        job.meet("met");
        if (self.rank() == 1) {
          job.transport->close(kWatchdog);
          return;
        }
        job.transport->expect_departure(other);
        self.say("expecting");
        job.serve(self);
        ASSERT_EQ(self.hear(), "its process has ended");
        if (over_tcp()) {
          ASSERT_TRUE(job.until([&] { return !job.transport->connected(other); }));
        }
        job.settle();
        EXPECT_TRUE(job.transport->take_failures().empty());
        job.transport->close(1s);
      },
      options());
  EXPECT_EQ(ranks.hear(0), "expecting");
  EXPECT_THROW(static_cast<void>(ranks.hear(1)), std::runtime_error);  // it has left
  ranks.tell(0, "its process has ended");
  for (const auto& report : ranks.join()) {
    EXPECT_TRUE(report.passed()) << report;
  }
}

/// Reachable to the end, so that sanitizers do not report a leak.
[[gnu::used]] Job* never_destroyed = nullptr;

TEST_P(UcxForkedTest, LeavingWithoutCloseIsQuietAndExitsWithZero) {
  run_forked_ranks(
      2,
      [](ForkedRank& self) {
        leave_allocations_behind();
        auto* const job = never_destroyed = new Job(self);
        const PeerId other = job->peers[static_cast<std::size_t>(1 - self.rank())];
        Message out("x");
        Message in(std::size_t{1});
        in.recv(*job->transport, other, 1);
        out.send(*job->transport, other, 1);
        ASSERT_TRUE(job->until([&] { return in.done() && out.done(); }));
        job->meet("met");
      },
      options());
}

}  // namespace
}  // namespace gtopk::test
