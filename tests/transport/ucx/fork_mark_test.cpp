#include "src/transport/ucx/fork_mark.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gtopk::transport {
namespace {

/// What a forked child's function returned, as its exit code.
template <class Run>
int in_a_child(Run run) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(run());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ForkMarkTest, OnlyTheProcessThatMadeItIsItsMaker) {
  const ForkMark mark;
  EXPECT_TRUE(mark.made_here());
  EXPECT_EQ(in_a_child([&] { return mark.made_here() ? 1 : 0; }), 0) << "in a child";
  EXPECT_EQ(in_a_child([&] { return in_a_child([&] { return mark.made_here() ? 1 : 0; }); }), 0)
      << "in a child's child";
  EXPECT_TRUE(mark.made_here());
}

TEST(ForkMarkTest, AMarkMadeInAChildIsThatChilds) {
  const ForkMark parents;
  EXPECT_EQ(in_a_child([&] {
              const ForkMark own;
              return own.made_here() && !parents.made_here() ? 7 : 1;
            }),
            7);
}

}  // namespace
}  // namespace gtopk::transport
