// Transport, base: what a process has run out of is named with its limit.
#include "src/transport/base/shortage.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

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
  EXPECT_THAT(descriptor_shortage(3), IsEmpty()) << "those opened to count are closed";
}

TEST(AnyShortage, NoMoreMemory_NamesTheLimit) {
  EXPECT_THAT(any_shortage(), IsEmpty());
  const SoftLimit none(RLIMIT_AS, 1 << 20);
  EXPECT_THAT(any_shortage(), HasSubstr("this process"));
  EXPECT_THAT(any_shortage(), HasSubstr("1048576"));
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

}  // namespace
}  // namespace gtopk::transport
