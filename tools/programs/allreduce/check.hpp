// gtopk-allreduce: checks that tensor and residuals match the contract, bit for bit, and that no
// selected value is lost.
#pragma once

#include <cstdint>

#include "tools/programs/allreduce/options.hpp"
#include "tools/programs/allreduce/subject.hpp"
#include "tools/programs/job.hpp"

namespace gtopk::programs::allreduce {

/// Beyond this many elements the sequential reference takes too long: about 10 s on one core.
inline constexpr std::uint64_t kMostChecked = 1UL << 22U;

struct Verdict {
  /// The number of elements of tensors and residuals that differ from the reference's, over all
  /// ranks.
  std::uint64_t wrong = 0;
  /// The largest |sum over ranks of (acc - residual) - result| over the largest |result|.
  double mass_error = 0;
};

/// Checks two steps on every rank, the second one with the residual of the first.
[[nodiscard]] Verdict check(Job& job, const Setting& setting, const Device* device);

/// Returns the number of ranks whose tensor differs from rank 0's.
[[nodiscard]] std::uint64_t ranks_that_differ(Job& job, std::uint64_t checksum);

}  // namespace gtopk::programs::allreduce
