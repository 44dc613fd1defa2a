// Communicator: a rank that has no file descriptors left for its first message says so on every
// rank, blames nobody else, and works again once it has some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "tests/communicator/member.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;

Ending reduce(Member& member) {
  std::vector<float> tensor(1000, 1.0F);
  const Pending pending;
  const SparseOptions options{.k = 100, .algorithm = "dense"};
  member.group().run(
      gtopk::sparse_all_reduce(tensor.data(), nullptr, tensor.size(), DataType::kFloat32, options),
      pending.call());
  return pending.wait();
}

/// Opens files until there are no descriptors left, well below the limit that is raised at start.
std::vector<int> take_all_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  std::vector<int> taken{dup(0)};
  limit.rlim_cur = static_cast<rlim_t>(taken.front()) + 100;
  setrlimit(RLIMIT_NOFILE, &limit);
  for (int each = 0; (each = dup(0)) >= 0;) {
    taken.push_back(each);
  }
  return taken;
}

class DescriptorShortageOf : public testing::TestWithParam<std::tuple<const char*, int>> {};

INSTANTIATE_TEST_SUITE_P(Ranks, DescriptorShortageOf,
                         testing::Combine(testing::Values(kTcp, kSharedMemory),
                                          testing::Range(0, kRanks)),
                         [](const auto& test) {
                           return fmt::format("{}_Rank{}",
                                              name_of_transport(std::get<0>(test.param)),
                                              std::get<1>(test.param));
                         });

TEST_P(DescriptorShortageOf, OneRank_IsNamedOnAllAndThenOver) {
  const auto [tls, victim] = GetParam();
  const auto body = [victim = victim](ForkedRank& self) {
    const auto store = self.store();
    Member member(self);
    wait_for_all(*store, "met", kRanks);
    Ending ending;
    if (self.rank() == victim) {
      const std::vector<int> taken = take_all_descriptors();
      ending = reduce(member);
      for (const int each : taken) {
        close(each);
      }
      wait_for_all(*store, "failed", kRanks);
    } else {
      wait_for_all(*store, "failed", kRanks);
      ending = reduce(member);
    }
    ASSERT_FALSE(ending.good());
    EXPECT_THAT(ending.text,
                AllOf(HasSubstr(fmt::format("#1 of group 'default' on rank {}: ", victim)),
                      testing::ContainsRegex("this process has (no|too few) file descriptors left"),
                      HasSubstr(", ulimit -n)")));
    wait_for_all(*store, "heard", kRanks);
    ending = reduce(member);
    EXPECT_TRUE(ending.good()) << ending.text;
    member.leave();
  };
  run_forked_ranks(kRanks, body,
                   {.limit = std::chrono::seconds(100), .environment = {{"UCX_TLS", tls}}});
}

}  // namespace
}  // namespace gtopk::test
