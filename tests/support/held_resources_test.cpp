// Test support: a leak of this process is seen, and what another process holds is not.
#include "tests/support/held_resources.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>

namespace gtopk::test {
namespace {

constexpr std::size_t kBytes = 4096;

int make_segment() { return shmget(IPC_PRIVATE, kBytes, IPC_CREAT | 0600); }
void remove_segment(int id) { shmctl(id, IPC_RMID, nullptr); }

TEST(HeldResources, SeeASegmentThatThisProcessLeavesBehind) {
  const HeldResources before;
  const int segment = make_segment();
  ASSERT_GE(segment, 0);
  const HeldResources after;
  EXPECT_EQ(after.segments, before.segments + 1);
  EXPECT_FALSE(after.no_more_than(before));
  remove_segment(segment);
  EXPECT_TRUE(holds_no_more_than(before));
}

TEST(HeldResources, DoNotSeeASegmentOfAnotherProcess) {
  const HeldResources before;
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t other = fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    const int segment = make_segment();
    _exit(write(channel[1], &segment, sizeof(segment)) == sizeof(segment) ? 0 : 1);
  }
  int segment = -1;
  ASSERT_EQ(read(channel[0], &segment, sizeof(segment)), static_cast<ssize_t>(sizeof(segment)));
  close(channel[0]);
  close(channel[1]);
  shmid_ds status{};
  EXPECT_EQ(shmctl(segment, IPC_STAT, &status), 0) << "it is there";
  EXPECT_TRUE(HeldResources().no_more_than(before)) << HeldResources() << "; before: " << before;
  remove_segment(segment);
  EXPECT_EQ(waitpid(other, nullptr, 0), other);
}

TEST(HeldResources, SeeMappedMemoryDescriptorsAndThreads) {
  std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first
  const HeldResources before;
  const int memory = memfd_create("gtopk-test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(memory, kBytes), 0);
  const HeldResources with_descriptor;
  EXPECT_EQ(with_descriptor.descriptors, before.descriptors + 1);
  EXPECT_FALSE(with_descriptor.no_more_than(before));
  void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, memory, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  close(memory);
  const HeldResources with_mapping;
  EXPECT_EQ(with_mapping.mappings, before.mappings + 1);
  EXPECT_FALSE(with_mapping.no_more_than(before));
  munmap(mapped, kBytes);
  EXPECT_TRUE(holds_no_more_than(before));
  std::latch end(1);
  std::thread thread([&] { end.wait(); });
  const HeldResources with_thread;
  EXPECT_EQ(with_thread.threads, before.threads + 1);
  EXPECT_FALSE(with_thread.no_more_than(before));
  end.count_down();
  thread.join();
  EXPECT_TRUE(holds_no_more_than(before));
}

TEST(SharedMemoryDirectory, Instance_IsSeparateAndRemovesItsFiles) {
  std::string path;
  {
    const SharedMemoryDirectory one;
    const SharedMemoryDirectory other;
    EXPECT_NE(one.path(), other.path());
    EXPECT_THAT(one.names(), testing::IsEmpty());
    path = one.path() + "/left";
    std::ofstream(path) << "behind";
    EXPECT_THAT(one.names(), testing::ElementsAre("left"));
    EXPECT_THAT(other.names(), testing::IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace gtopk::test
