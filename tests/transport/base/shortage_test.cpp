// Transport, base: what a process has run out of is named with its limit.
#include "src/transport/base/shortage.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "gtopk/error.hpp"

namespace gtopk::transport {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

/// The soft limit of a resource, until the end of the scope.
class SoftLimit {
 public:
  SoftLimit(__rlimit_resource resource, rlim_t limit) : resource_(resource) {
    getrlimit(resource, &before_);
    const rlimit now = {.rlim_cur = limit, .rlim_max = before_.rlim_max};
    setrlimit(resource, &now);
  }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;
  ~SoftLimit() { setrlimit(resource_, &before_); }

  [[nodiscard]] rlim_t hard() const { return before_.rlim_max; }

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

rlim_t next_descriptor() {
  const int next = dup(0);
  close(next);
  return static_cast<rlim_t>(next);
}

TEST(DescriptorShortage, NoneLeft_NamesTheLimit) {
  const rlim_t next = next_descriptor();
  const SoftLimit none(RLIMIT_NOFILE, next);
  EXPECT_EQ(descriptor_shortage(1), "this process has no file descriptors left (limit " +
                                        std::to_string(next) + ", ulimit -n)");
  EXPECT_EQ(any_shortage(), descriptor_shortage(1));
}

TEST(DescriptorShortage, TooFewLeft_SaysHowMany) {
  const rlim_t next = next_descriptor();
  const SoftLimit few(RLIMIT_NOFILE, next + 3);
  EXPECT_THAT(descriptor_shortage(3), IsEmpty());
  EXPECT_THAT(descriptor_shortage(4),
              HasSubstr("too few file descriptors left, 3 of the 4 needed"));
  EXPECT_THAT(descriptor_shortage(3), IsEmpty());
}

TEST(DescriptorShortage, Counting_TakesNoneFromAnotherThread) {
  const SoftLimit few(RLIMIT_NOFILE, next_descriptor() + 3);
  std::atomic<bool> counted = false;
  std::thread counts([&] {
    for (int i = 0; i < 10'000; ++i) {
      EXPECT_THAT(descriptor_shortage(4), HasSubstr("too few file descriptors left, "));
    }
    counted = true;
  });
  while (!counted) {
    const int descriptor = dup(0);
    EXPECT_GE(descriptor, 0);
    close(descriptor);
  }
  counts.join();
}

/// Bytes.
rlim_t address_space_in_use() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

TEST(AnyShortage, NoMoreMemory_NamesTheLimit) {
  EXPECT_THAT(any_shortage(), IsEmpty());
  const rlim_t limit =
      address_space_in_use() + (rlim_t{8} << 20U);  // a sanitizer needs some itself
  const SoftLimit little(RLIMIT_AS, limit);
  EXPECT_THAT(any_shortage(), HasSubstr("this process cannot get more memory"));
  EXPECT_THAT(any_shortage(), HasSubstr("address space: " + std::to_string(limit) + " bytes"));
}

TEST(RaiseOpenFileLimit, SoftLimit_BecomesTheHardOneOnce) {
  const SoftLimit low(RLIMIT_NOFILE, 64);
  EXPECT_TRUE(raise_open_file_limit());
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, std::min<rlim_t>(low.hard(), 1 << 20));
  EXPECT_FALSE(raise_open_file_limit());
}

TEST(StartThread, RunsUnderItsName) {
  std::atomic<bool> ran{false};
  start_thread("gtopk-test", [&] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

/// Exits with 3 if no thread can be started, and prints why.
[[noreturn]] void start_a_thread_beyond_the_limit() {
  const rlimit one = {.rlim_cur = 1, .rlim_max = 1};
  setrlimit(RLIMIT_NPROC, &one);
  constexpr uid_t kNobodyElse = 54321;
  if (geteuid() == 0 && setuid(kNobodyElse) != 0) {  // root has no limit
    _exit(1);
  }
  try {
    start_thread("gtopk-test", [] {}).join();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    _exit(3);
  }
  _exit(0);
}

TEST(StartThread, NoMoreThreads_NamesTheLimit) {
  EXPECT_EXIT(start_a_thread_beyond_the_limit(), testing::ExitedWithCode(3),
              "cannot start the thread gtopk-test: .*processes and threads 1, ulimit -u");
}

}  // namespace
}  // namespace gtopk::transport
