// Tests of the UCX transport in a process that has run out of something: the error says so, here,
// and no signal ends the process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "tests/support/forked_ranks.hpp"
#include "tests/transport/ucx/job.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

ForkedRanks::Options ranks_over(const std::string& tls) {
  return {.limit = 100s, .environment = {{"UCX_TLS", tls}}};
}

/// Leaves this process so many descriptors, for as long as this exists.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t left) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next) + 100;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int each = 0; (each = dup(0)) >= 0;) {
      held_.push_back(each);
    }
    for (; left > 0; --left) {
      close(held_.back());
      held_.pop_back();
    }
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() {
    for (const int each : held_) {
      close(each);
    }
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> held_;
};

class UcxShortage : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Transports, UcxShortage,
                         testing::Values("tcp,self", "posix,self", "sysv,self",
                                         "tcp,posix,sysv,self"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, ',');
                           return name;
                         });

TEST_P(UcxShortage, StartWithTooFewDescriptors_FailsAndNamesUlimit) {
  ForkedRanks ranks(
      1,
      [](ForkedRank&) {
        bool started = false;
        for (std::size_t left = 0; left < 80 && !started; ++left) {
          const FewDescriptors few(left);
          try {
            transport::make_ucx_transport()->close(kWatchdog);
            started = true;
          } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("file descriptors left")) << left << " left";
            EXPECT_THAT(error.what(), HasSubstr("ulimit -n")) << left << " left";
          }
        }
        EXPECT_TRUE(started);
      },
      ranks_over(GetParam()));
  const auto reports = ranks.join();
  EXPECT_TRUE(reports[0].passed()) << reports[0];
}

TEST_P(UcxShortage, MessageWithoutDescriptors_FailsButNoticesGoOut) {
  const auto body = [](ForkedRank& self) {
    Job job(self);
    constexpr Tag kNotice = transport::control_tag(1);
    job.meet("start");
    if (self.rank() == 0) {
      std::deque<Message> notices;
      {
        const FewDescriptors none(0);
        for (const PeerId peer : {job.peers[1], job.peers[2]}) {
          Message lost("lost");
          lost.send(*job.transport, peer, 1);
          ASSERT_FALSE(lost.pending());
          EXPECT_EQ(lost.status(), Status::kPeerFailed);
          EXPECT_THAT(job.transport->why_unreachable(peer),
                      HasSubstr("this process has no file descriptors left (limit "));
          Message in(std::size_t{4});
          in.recv(*job.transport, peer, 1);
          EXPECT_EQ(in.status(), Status::kPeerFailed);
        }
        for (const PeerId peer : {job.peers[1], job.peers[2]}) {
          notices.emplace_back("notice").request.urgent = true;
          notices.back().send(*job.transport, peer, kNotice);
        }
        ASSERT_TRUE(job.until([&] { return notices[0].done() && notices[1].done(); }));
        EXPECT_EQ(notices[0].status(), Status::kOk);
        EXPECT_EQ(notices[1].status(), Status::kOk);
      }
      // The peers are not to blame, and there are descriptors again.
      EXPECT_TRUE(job.transport->take_failures().empty());
      for (const PeerId peer : {job.peers[1], job.peers[2]}) {
        Message out("again");
        out.send(*job.transport, peer, 2);
        ASSERT_TRUE(job.until([&] { return out.done(); }));
        EXPECT_EQ(out.status(), Status::kOk);
      }
    } else {
      Message notice(std::size_t{6});
      Message again(std::size_t{5});
      notice.recv(*job.transport, job.peers[0], kNotice);
      again.recv(*job.transport, job.peers[0], 2);
      ASSERT_TRUE(job.until([&] { return notice.done() && again.done(); }));
      EXPECT_EQ(notice.text(), "notice");
      EXPECT_EQ(again.text(), "again");
    }
    job.leave();
  };
  ForkedRanks ranks(3, body, ranks_over(GetParam()));
  for (const auto& report : ranks.join()) {
    EXPECT_TRUE(report.passed()) << report;
  }
}

TEST(UcxShortageOverTcp, AcceptWithoutDescriptors_IsOwnFailure) {
  const auto body = [](ForkedRank& self) {
    Message out("lost");  // may still be on its way when the job ends
    Job job(self);
    if (self.rank() == 0) {
      job.meet("start");
      out.send(*job.transport, job.peers[1], 1);
      job.serve(self);
    } else {
      const FewDescriptors none(0);
      job.meet("start");
      const auto failures = next_failures(job);
      ASSERT_EQ(failures.size(), 1U);
      EXPECT_EQ(failures[0].peer, job.peers[1]) << "of itself";
      EXPECT_THAT(failures[0].reason, HasSubstr("file descriptors left"));
      EXPECT_THAT(failures[0].reason, HasSubstr("ulimit -n"));
      EXPECT_TRUE(job.transport->spent());
    }
    self.say("done");
  };
  ForkedRanks ranks(2, body, ranks_over("tcp,self"));
  EXPECT_EQ(ranks.hear(1), "done");
  ranks.tell(0, "go");
  for (const auto& report : ranks.join()) {
    EXPECT_TRUE(report.passed()) << report;
  }
}

/// Gives this process a /dev/shm of its own.
void mount_small_dev_shm() {
  ASSERT_EQ(unshare(CLONE_NEWNS), 0);
  ASSERT_EQ(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  ASSERT_EQ(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=24m"), 0);
}

void fill_dev_shm() {
  std::ofstream file("/dev/shm/others");
  const std::string block(1U << 16U, 'x');
  while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
  }
}

TEST(UcxShortageOfSharedMemory, FullDevShm_IsNamedWithFreeSpace) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "mounts a file system, which needs root";
  }
  const auto body = [](ForkedRank& self) {
    Message out("lost");  // may still be on its way when the job ends
    Job job(self, [] {
      mount_small_dev_shm();
      fill_dev_shm();
    });
    out.send(*job.transport, job.peers[1 - self.rank()], 1);
    std::vector<transport::PeerFailure> failures;
    EXPECT_TRUE(job.until([&] {
      failures = job.transport->take_failures();
      return !failures.empty();
    }));
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_TRUE(failures[0].never_reached);
    EXPECT_THAT(failures[0].reason, HasSubstr("/dev/shm has 0.0 MiB left"));
    job.meet("done");
  };
  ForkedRanks ranks(2, body, ranks_over("posix,self"));
  for (const auto& report : ranks.join()) {
    EXPECT_TRUE(report.passed()) << report;
  }
}

}  // namespace
}  // namespace gtopk::test
