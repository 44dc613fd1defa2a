// What /proc says of processes that end.
#include "src/transport/ucx/host_identity.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <thread>

namespace gtopk::transport {
namespace {

/// Blocks until the child's first thread is a zombie.
void wait_for_the_leaders_end(pid_t child) {
  std::string state;
  while (state != "Z") {
    std::string pid;
    std::string name;
    std::ifstream(fmt::format("/proc/{}/stat", child)) >> pid >> name >> state;
    std::this_thread::yield();
  }
}

TEST(HostIdentity, LivingProcess_HasAStartAndIsNotExiting) {
  EXPECT_GT(start_of(getpid()), 0U);
  EXPECT_FALSE(is_exiting(getpid()));
}

TEST(HostIdentity, ProcessThatHasEndedAndIsNotReaped_IsExiting) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  siginfo_t end{};  // of all its threads: a sanitizer starts one
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_exiting(child));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(is_exiting(child));
  EXPECT_EQ(start_of(child), 0U);
}

TEST(HostIdentity, LeaderThreadEndedButOtherAlive_IsNotExiting) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    std::thread([&ends] {
      char end = 0;
      _exit(read(ends[0], &end, 1) == 0 ? 0 : 1);
    }).detach();
    syscall(SYS_exit, 0);  // of this thread alone, and nothing is unwound
  }
  close(ends[0]);
  wait_for_the_leaders_end(child);
  EXPECT_FALSE(is_exiting(child));
  close(ends[1]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace gtopk::transport
