// Sparse all-reduces in which no rank selects, of tensors on a device: the device is the kernels on
// the host executor, and does late what it is asked for. The results are the sequential
// reference's, bit for bit, also among ranks that have their tensors on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "gtopk/gate.hpp"
#include "src/gtopk/plan/planner.hpp"
#include "tests/gtopk/algorithms/device_job.hpp"
#include "tests/gtopk/algorithms/host_acc.hpp"
#include "tests/reference/reference_selectors.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using sparse::testing::all;
using sparse::testing::HostAcc;
using sparse::testing::plain;
using ::testing::HasSubstr;
using Job = sparse::testing::JobOnDevices<HostAcc>;

constexpr const char* kOfAcc[] = {"random-k", "dense", "true-topk", "sketch"};

/// How a case came out; empty: as the reference does.
std::string outcome_of_acc(const reference::Problem& problem, std::uint64_t seed,
                           const std::vector<bool>& on_device) {
  Job job(problem, seed, on_device);
  job.call();
  job.run();
  const std::string wrong = job.differs();
  const std::vector<std::string> left = job.ranks().close();
  return wrong.empty() && !left.empty() ? left.front() : wrong;
}

// By turns all ranks have a device, those with an even number, those with an odd one.
TEST(AccOnDevices, GivesTheReferencesBits) {
  constexpr std::uint64_t kCases = support::kSanitized ? 1 : 12;
  std::uint64_t number = 0;
  std::uint64_t called = 0;
  for (const char* const algorithm : kOfAcc) {
    for (const std::uint32_t size : {1U, 2U, 3U, 5U}) {
      for (const DataType type : reference::kFloatingTypes) {
        for (std::uint64_t one = 0; one < kCases; ++one) {
          const std::uint64_t seed = 1 + 1000 * ++number;
          const reference::Case drawn = reference::random_case(seed, type, size, algorithm);
          if (drawn.problem.d == 0) {
            continue;
          }
          ++called;
          std::vector<bool> on_device(size);
          for (std::uint32_t rank = 0; rank < size; ++rank) {
            on_device[rank] = number % 3 == 0 || rank % 2 == number % 3 - 1;
          }
          ASSERT_EQ(outcome_of_acc(drawn.problem, seed, on_device), "") << drawn.description;
        }
      }
    }
  }
  EXPECT_GE(called, kCases * 4 * 4 * 4 / 2);
}

// With costs that are measured first, and then with those of a slow network, by which the choice
// follows from k. Half of the ranks have no device.
TEST(AccOnDevices, AutoChoosingAccOrLists_EqualsReference) {
  constexpr Costs kSlow{.within = {1e3, 1}, .between = {50e3, 80}, .select = 1, .commit = 1};
  std::set<std::string> chosen;
  std::uint64_t seed = 0;
  for (const bool known : {false, true}) {
    for (const bool all_of_it : {false, true}) {
      for (const std::uint32_t size : {1U, 2U, 3U, 5U}) {
        for (const DataType type : reference::kFloatingTypes) {
          reference::Case drawn = reference::random_case(++seed, type, size, "gtopk");
          // Measuring takes most of the time and does not depend on the type: one for each size.
          const bool measures_again =
              !known && type != reference::kFloatingTypes[(size + (all_of_it ? 1 : 0)) % 4];
          if (drawn.problem.d == 0 || measures_again) {
            continue;
          }
          drawn.problem.options.algorithm = "auto";
          drawn.problem.options.k = all_of_it ? drawn.problem.d : 1 + drawn.problem.d / 50;
          std::vector<bool> on_device(size, true);
          for (std::uint32_t rank = seed % 2; rank < size; rank += 2) {
            on_device[rank] = false;
          }
          Job job(drawn.problem, seed, on_device);
          for (std::uint32_t rank = 0; known && rank < size; ++rank) {
            job.ranks().group(rank)->per_group_state.of<sparse::Planner>().costs = kSlow;
          }
          job.call();
          job.run();
          ASSERT_TRUE(job.ending(0)->good()) << job.ending(0)->text();
          job.was(job.ranks().group(0)->per_group_state.of<PlanReport>().algorithm);
          ASSERT_EQ(job.differs(), "") << drawn.description << ", seed " << seed;
          chosen.insert(job.ranks().group(0)->per_group_state.of<PlanReport>().algorithm);
        }
      }
    }
  }
  EXPECT_TRUE(chosen.contains("dense"));
  EXPECT_GE(chosen.size(), 2U) << "lists, too";
}

TEST(AccOnDevices, RecordsWhatIsDelivered) {
  for (const char* const algorithm : kOfAcc) {
    const reference::Problem problem = plain(1, 300, 5, algorithm);
    const reference::Outcome expected = reference::all_reduce(problem);
    std::vector<std::int64_t> indices(300);
    std::vector<float> values(300);
    support::Tensor tensor = support::tensor_of(problem, 0);
    HostAcc device(problem, tensor, 1, {indices.data(), values.data(), 300});
    support::InprocRanks ranks(1);
    const auto ending = ranks.submit(0, engine::OperationSpec(device.begin_and_call()));
    ranks.run_until([&] {
      device.work();
      return ending->ended;
    });
    ASSERT_TRUE(ending->good()) << ending->text();
    std::size_t at = 0;
    for (const auto& [index, value] : expected.delivered) {
      if (std::string(algorithm) != "dense") {
        EXPECT_EQ(indices[at], static_cast<std::int64_t>(index)) << algorithm;
      }
      EXPECT_EQ(values[at++], static_cast<float>(value)) << algorithm;
    }
    EXPECT_EQ(at, std::string(algorithm) == "dense" ? 300U : 5U);
  }
}

// Both parts of a step arrive at its gate: the other one here did so before.
TEST(AccOnDevices, HappensAtAGateWithTheOtherPartsOrNotAtAll) {
  for (const char* const algorithm : kOfAcc) {
    for (const bool other : {true, false}) {
      reference::Problem problem = plain(1, 40, 3, algorithm);
      problem.options.gate = std::make_shared<Gate>(2);
      problem.options.gate->arrive(other);
      support::Tensor tensor = support::tensor_of(problem, 0);
      tensor.residual = tensor.values;
      const support::Tensor before = tensor;
      HostAcc device(problem, tensor, 1);
      support::InprocRanks ranks(1);
      const auto ending = ranks.submit(0, engine::OperationSpec(device.begin_and_call()));
      ranks.run_until([&] {
        device.work();
        return ending->ended;
      });
      ASSERT_TRUE(ending->good()) << ending->text();
      device.commit();
      EXPECT_EQ(*tensor.residual == *before.residual, !other) << algorithm;
      EXPECT_NE(tensor.values, before.values) << algorithm << ", " << other;
    }
  }
}

TEST(AccOnDevices, OfWhatIsNotADevicesAreRefused) {
  SparseOptions options;
  options.k = 3;
  for (const char* const algorithm : {"gtopk", "topk", "auto"}) {
    options.algorithm = algorithm;
    EXPECT_FALSE(acc_capacity(10, DataType::kFloat32, options).has_value()) << algorithm;
  }
  options.algorithm = "gtopk";
  EXPECT_THROW((void)sparse_all_reduce(AccOnDevice{}, 10, DataType::kFloat32, options), Error);
  options.algorithm = "random-k";
  EXPECT_FALSE(acc_capacity(0, DataType::kFloat32, options).has_value());
  options.k = 0;
  EXPECT_THROW((void)acc_capacity(10, DataType::kFloat32, options), Error);
}

TEST(AccOnDevices, DeviceError_FailsAllRanksAndGroupWorksOn) {
  Job job(plain(2, 5000, 7, "sketch"), 1, all(2));
  job.device(1).break_with(std::make_exception_ptr(std::runtime_error("the device is lost")));
  job.call();
  job.run();
  EXPECT_FALSE(job.ending(0)->good());
  EXPECT_FALSE(job.ending(1)->good());
  EXPECT_THAT(job.ending(1)->text(), HasSubstr("the device is lost"));
  EXPECT_THAT(job.ending(0)->text(), HasSubstr("rank 1"));
  EXPECT_EQ(support::group_works(job.ranks()), "");
}

}  // namespace
}  // namespace gtopk
