// Tests of the UCX transport over a link with a long round trip: this machine's loopback, in a
// network namespace of its own, whose queue lets 50 packets pass in a second, however small.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/support/forked_ranks.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

/// Every packet counts as 2,000 bytes and takes 20 ms, so no answer comes sooner.
constexpr const char* kLengthenLoopback =
    "PATH=$PATH:/usr/sbin:/sbin; ip link set lo up mtu 1500 && tc qdisc add dev lo root tbf "
    "rate 800kbit burst 2000 mpu 2000 limit 1000000";

bool enter_long_link() { return unshare(CLONE_NEWNET) == 0 && std::system(kLengthenLoopback) == 0; }

bool long_link_can_be_had() {
  const pid_t child = fork();
  if (child == 0) {
    _exit(enter_long_link() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

// A round trip is looked up when the first message from there has arrived (docs/ucx.md).
TEST(UcxLongLink, HasMoreConnectionsOnceThePeerHasAnswered) {
  if (!long_link_can_be_had()) {
    GTEST_SKIP() << "needs root, for a network namespace, and tc";
  }
  run_forked_ranks(1, [](ForkedRank& /*self*/) {
    ASSERT_TRUE(enter_long_link());
    Mesh mesh(2, {.settings = {{"TLS", "tcp,self"}}});
    const auto pass_a_message = [&](std::size_t from, std::uint32_t number) {
      const std::size_t to = 1 - from;
      Message in(std::size_t{100});
      in.recv(mesh[to], mesh.ids[to][from], number);
      Message out(pattern(100, number));
      out.send(mesh[from], mesh.ids[from][to], number);
      ASSERT_TRUE(
          progress_until([&] { return mesh.move(); }, [&] { return in.done() && out.done(); }));
      EXPECT_TRUE(in.bytes == out.bytes);
      static_cast<void>(mesh.move());  // what it looks at after a message
    };
    for (std::uint32_t number = 0; number < 3; ++number) {
      pass_a_message(0, number);
      EXPECT_EQ(mesh[0].connections(mesh.ids[0][1]), 1U);
    }
    pass_a_message(1, 3);
    EXPECT_GT(mesh[0].connections(mesh.ids[0][1]), 1U);
  });
}

}  // namespace
}  // namespace gtopk::test
