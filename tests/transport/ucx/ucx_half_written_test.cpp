// Tests of the UCX transport: a neighbour that is killed while it writes a message hides all later
// ones in shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <cstddef>
#include <vector>

#include "tests/support/forked_ranks.hpp"
#include "tests/transport/ucx/job.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;

/// Ends this process inside UCX, which has begun to write a message to the peer.
void die_in_the_middle_of_a_message(Job& job, PeerId peer) {
  constexpr std::size_t kBytes = 64;
  void* const unreadable = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  struct sigaction kills {};
  kills.sa_handler = [](int) { raise(SIGKILL); };
  sigaction(SIGSEGV, &kills, nullptr);
  transport::Request request;
  job.transport->send(peer, 2, ConstBytes(static_cast<const std::byte*>(unreadable), kBytes),
                      request);
}

TEST(UcxHalfWritten, KilledPeer_HidesLaterMessagesAndReaderSaysSo) {
  ForkedRanks ranks(
      3,
      [](ForkedRank& self) {
        Job job(self);
        if (self.rank() == 2) {
          exchange_a_message(job, job.peers[0]);
          die_in_the_middle_of_a_message(job, job.peers[0]);
        }
        Message waiting(std::size_t{100});
        if (self.rank() == 0) {
          exchange_a_message(job, job.peers[2]);
          waiting.recv(*job.transport, job.peers[2], 3);
          expect_to_be_told(job, job.peers[2], waiting);
          EXPECT_TRUE(job.transport->spent()) << "a group made now needs another transport";
          job.size = 2;
          job.meet("told");
          Message hidden(std::size_t{1});
          hidden.recv(*job.transport, job.peers[1], 4);
          const auto failures = next_failures(job);
          ASSERT_EQ(failures.size(), 1U);
          EXPECT_EQ(failures[0].peer, job.peers[0]) << "of itself";
          EXPECT_THAT(failures[0].reason,
                      testing::HasSubstr(" was killed while it wrote to the shared memory"));
          EXPECT_TRUE(hidden.pending());
          job.transport->cancel(hidden.request);
          EXPECT_TRUE(job.transport->spent());
        } else {
          job.size = 2;
          job.meet("told");
          Message out("x");
          out.send(*job.transport, job.peers[0], 4);
          ASSERT_TRUE(job.until([&] { return out.done(); }));
          EXPECT_FALSE(job.transport->spent());
        }
        job.size = 2;
        job.meet("leave");
        job.transport->close(1s);
      },
      {.limit = 100s, .environment = {{"UCX_TLS", "posix,sysv,self"}}});
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
  EXPECT_TRUE(reports[1].passed()) << reports[1];
  EXPECT_TRUE(reports[2].signalled(SIGKILL)) << reports[2];
}

}  // namespace
}  // namespace gtopk::test
