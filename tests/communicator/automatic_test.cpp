// Communicator: between real processes `auto` measures costs, all ranks choose the same algorithm,
// and the result is that of the chosen algorithm.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "gtopk/collectives.hpp"
#include "tests/communicator/member.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

constexpr std::uint64_t kElements = 50'000;
/// None asserts a choice: costs differ, and which algorithm is cheapest depends on the machine.
constexpr std::uint64_t kEntries[] = {10, 5'000, kElements};

std::vector<float> gradient(std::uint32_t rank) {
  std::vector<float> values(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) {
    values[i] =
        static_cast<float>((i * 7919 + std::uint64_t{rank} * 104'729) % 100'003) - 50'000.0F;
  }
  return values;
}

void reduce(Member& member, std::vector<float>& tensor, const SparseOptions& options) {
  const Pending pending;
  member.group().run(
      gtopk::sparse_all_reduce(tensor.data(), nullptr, tensor.size(), DataType::kFloat32, options),
      pending.call());
  const Ending ending = pending.wait();
  ASSERT_TRUE(ending.good()) << ending.text;
}

void choose_alike(ForkedRank& self) {
  Member member(self);
  EXPECT_FALSE(member.group().last_plan().has_value());
  for (const std::uint64_t k : kEntries) {
    std::vector<float> automatic = gradient(self.rank());
    reduce(member, automatic, {.k = k, .algorithm = "auto"});
    const std::optional<PlanReport> plan = member.group().last_plan();
    ASSERT_TRUE(plan.has_value());
    EXPECT_GT(plan->actual_seconds, 0);
    EXPECT_GT(plan->costs.within.message, 0);  // all ranks are on this host
    EXPECT_GT(plan->costs.within.byte, 0);
    EXPECT_EQ(plan->costs.between.message, 0);
    EXPECT_EQ(plan->costs.between.byte, 0);
    EXPECT_EQ(plan->measured_by, 1U);
    // A rank that had chosen another algorithm would raise a mismatch here.
    std::vector<float> named = gradient(self.rank());
    reduce(member, named, {.k = k, .algorithm = plan->algorithm});
    EXPECT_EQ(automatic, named) << plan->reason;
  }
  member.leave();
}

class AutoOver : public testing::TestWithParam<const char*> {};

TEST_P(AutoOver, AllRanksChooseAlikeAndGetWhatTheyChose) {
  for (const int size : {2, 3}) {
    run_forked_ranks(size, choose_alike, {.environment = {{"UCX_TLS", GetParam()}}});
  }
}

INSTANTIATE_TEST_SUITE_P(Every, AutoOver, testing::Values(kTcp, kSharedMemory),
                         [](const auto& instance) { return name_of_transport(instance.param); });

}  // namespace
}  // namespace gtopk::test
