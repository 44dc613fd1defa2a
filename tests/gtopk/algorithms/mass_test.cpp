// Sparse, algorithms: what the ranks put in comes out, in the result and the residuals
// together; and a step with anything non-finite leaves no trace but NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::Tensor;

// Checked on what the ranks hold afterwards, not through the reference: sum(acc) = sum(delivered) +
// sum(residual).
TEST(Mass, IsConservedInEveryRandomCase) {
  std::uint64_t finite_cases = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const auto size = reference::one_of(reference::kRankCounts, seed);
    const std::string& algorithm =
        reference::one_of(reference::algorithms(), seed / std::size(reference::kRankCounts));
    const DataType type = seed % 2 == 0 ? DataType::kFloat32 : DataType::kFloat64;
    reference::Case drawn = reference::random_case(seed, type, size, algorithm);
    reference::Problem& problem = drawn.problem;
    const std::vector<std::string> wires = reference::wires(algorithm);
    problem.options.wire = wires[seed / 7 % wires.size()];
    problem.options.op = ReduceOp::kSum;  // then the result is the delivered sum itself
    for (reference::Input& input : problem.ranks) {
      if (!input.residual) {
        input.residual = reference::zeros(type, problem.d);
      }
    }
    InprocRanks ranks(size, {.seed = seed});
    std::vector<Tensor> tensors;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      tensors.push_back(support::tensor_of(problem, rank));
    }
    const auto endings = ranks.run(
        [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(endings[rank]->good()) << drawn.description << ": " << endings[rank]->text();
    }
    if (problem.d == 0 || std::isnan(reference::load(type, tensors[0].values, 0))) {
      continue;
    }
    ++finite_cases;
    std::vector<reference::Bytes> accs;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      accs.push_back(reference::accumulated(problem, rank));
    }
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      // A long double holds sums of the largest doubles.
      long double put_in = 0;
      long double magnitude = 0;
      long double left = 0;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        const double acc = reference::load(type, accs[rank], i);
        put_in += acc;
        magnitude += std::fabs(acc);
        left += reference::load(type, *tensors[rank].residual, i);
        magnitude = std::max(magnitude, fabsl(left));
      }
      // Putting a dropped sum back is the only addition that can overflow after the step has
      // happened.
      if (!std::isfinite(left) && drawn.description.find(" huge ") != std::string::npos) {
        continue;
      }
      const long double out = reference::load(type, tensors[0].values, i) + left;
      // At most 2 log2 P + P additions, each rounding once.
      const long double bound =
          64 * reference::epsilon(type) * magnitude + 64 * reference::smallest(type);
      ASSERT_LE(fabsl(put_in - out), bound) << drawn.description << " at " << i;
    }
  }
  EXPECT_GT(finite_cases, 700U);
}

class NotFinite : public ::testing::TestWithParam<std::tuple<std::string, DataType>> {};

// At every rank, in gradient and in residual.
TEST_P(NotFinite, ValueAnywhere_MakesTensorsNanAndKeepsResiduals) {
  const auto [algorithm, type] = GetParam();
  const DataType acc_type = accumulation_type(type);
  for (const std::uint32_t size : {1U, 2U, 3U, 6U}) {
    for (std::uint32_t bad = 0; bad < size; ++bad) {
      for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        for (const bool in_residual : {false, true}) {
          reference::Problem problem = reference::random_case(size, type, size, algorithm).problem;
          problem.options.k = 1;
          for (reference::Input& input : problem.ranks) {
            for (std::uint64_t i = 0; i < problem.d; ++i) {
              reference::store(type, input.gradient, i, 1.0 + static_cast<double>(i % 3));
            }
            input.residual = reference::zeros(acc_type, problem.d);
            reference::store(acc_type, *input.residual, 0, -0.0);
          }
          reference::Input& input = problem.ranks[bad];
          reference::store(in_residual ? acc_type : type,
                           in_residual ? *input.residual : input.gradient, problem.d - 1, value);
          InprocRanks ranks(size);
          ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
              << "P=" << size << " rank " << bad << " holds " << value;
          ASSERT_FALSE(reference::all_reduce(problem).happened);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, NotFinite,
                         ::testing::Combine(::testing::ValuesIn(reference::algorithms()),
                                            ::testing::ValuesIn(reference::kFloatingTypes)));

}  // namespace
}  // namespace gtopk
