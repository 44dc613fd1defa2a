// Tests of start and end: nothing is left behind, a fork is noticed, and a message causes no
// allocation of ours. Cases share a process, so each counts relative to its start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <string>

#include "gtopk/error.hpp"
#include "tests/support/held_resources.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace {
std::atomic<long> allocations{0};
}

// Counts what this program allocates through C++; UCX, a C library, does not use operator new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace gtopk::test {
namespace {

using testing::HasSubstr;

void exchange_once(Mesh& mesh) {
  Message out(pattern(100'000, 1));
  Message in(std::size_t{100'000});
  in.recv(mesh[1], mesh.ids[1][0], 1);
  out.send(mesh[0], mesh.ids[0][1], 1);
  ASSERT_TRUE(mesh.until([&] { return in.done() && out.done(); }));
  ASSERT_TRUE(in.bytes == out.bytes);
}

class UcxLifecycleTest : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] transport::UcxOptions options() const {
    // UCX unlinks a file at once if it can share it through a link in /proc; shared by name, the
    // file remains visible.
    return {.settings = {
                {"TLS", GetParam()}, {"POSIX_DIR", files_.path()}, {"POSIX_USE_PROC_LINK", "n"}}};
  }
  [[nodiscard]] testing::AssertionResult nothing_left_since(const HeldResources& before) const {
    if (!files_.names().empty()) {
      return testing::AssertionFailure() << "a file of shared memory: " << files_.names().front();
    }
    return holds_no_more_than(before);
  }

 private:
  SharedMemoryDirectory files_;
};

INSTANTIATE_TEST_SUITE_P(Transports, UcxLifecycleTest,
                         testing::Values("tcp,self", "tcp,posix,sysv,self"), [](const auto& test) {
                           return std::string(test.param) == "tcp,self" ? "Tcp" : "SharedMemory";
                         });

TEST_P(UcxLifecycleTest, FiftyRoundsLeaveNothingBehind) {
  const auto round = [this] {
    Mesh mesh(2, options());
    exchange_once(mesh);
    for (std::size_t i = 0; i < 2; ++i) {
      mesh[i].close(std::chrono::nanoseconds(0));
    }
  };
  round();  // from here on UCX's per-process resources exist
  const HeldResources before;
  for (int i = 0; i < 50; ++i) {
    round();
  }
  EXPECT_TRUE(nothing_left_since(before));
}

TEST_P(UcxLifecycleTest, DestructionWithoutCloseLeavesNothingBehind) {
  {
    Mesh mesh(2, options());
    exchange_once(mesh);
  }
  const HeldResources before;
  for (int i = 0; i < 5; ++i) {
    Mesh mesh(2, options());
    exchange_once(mesh);
  }
  EXPECT_TRUE(nothing_left_since(before));
}

TEST_P(UcxLifecycleTest, MessagesOfAnySizeAllocateNothingOfOurs) {
  Mesh mesh(2, options());
  for (const std::size_t size : {0UL, 64UL, 20'000UL, 200'000UL, 1UL << 20U}) {
    Message out(pattern(size, 1));
    Message in(size);
    const auto once = [&] {
      in.arm();
      out.arm();
      in.recv(mesh[1], mesh.ids[1][0], 1);
      out.send(mesh[0], mesh.ids[0][1], 1);
      return mesh.until([&] { return in.done() && out.done(); });
    };
    ASSERT_TRUE(once());
    const long before = allocations.load();
    bool moved = true;
    for (int i = 0; i < 20; ++i) {
      moved = once() && moved;
    }
    const long after = allocations.load();
    EXPECT_TRUE(moved);
    EXPECT_EQ(after - before, 0) << size << " bytes";
  }
}

TEST(UcxLifecycle, ForkedChildGetsAnErrorAndLeavesTheParentAlone) {
  Mesh mesh(2);
  exchange_once(mesh);
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::string answer = "no error";
    Message out("x");
    try {
      out.send(mesh[0], mesh.ids[0][1], 1);
    } catch (const Error& error) {
      answer = error.what();
    }
    mesh.transports.clear();  // must not tear down what the parent uses
    const bool written = write(channel[1], answer.data(), answer.size()) > 0;
    _exit(written ? 0 : 1);
  }
  close(channel[1]);
  char answer[512] = {};
  EXPECT_GT(read(channel[0], answer, sizeof(answer) - 1), 0);
  close(channel[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(answer, HasSubstr("was forked from process " + std::to_string(getpid())));
  exchange_once(mesh);
}

TEST(UcxLifecycle, UnmatchedMessageIsNamedAtClose) {
  testing::internal::CaptureStderr();
  {
    Mesh mesh(2);
    exchange_once(mesh);
    Message out("nobody wants me");
    out.send(mesh[0], mesh.ids[0][1], transport::collective_tag(3, 1, 17, 2));
    ASSERT_TRUE(mesh.arrived(0, 1));
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("nobody received collective group 3 source 1 sequence 17 step 2"));
}

TEST(UcxLifecycle, NoticeThatNobodyReceivedIsNoWarningAtClose) {
  testing::internal::CaptureStderr();
  {
    Mesh mesh(2);
    exchange_once(mesh);
    Message out("goodbye");
    out.send(mesh[0], mesh.ids[0][1], transport::control_tag(mesh[0].self().identity));
    ASSERT_TRUE(mesh.arrived(0, 1));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace gtopk::test
