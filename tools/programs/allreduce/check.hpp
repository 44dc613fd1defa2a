// gtopk-allreduce: whether tensor and residuals are what the contract says, bit for bit, and
// whether what was selected is all there afterwards.
#pragma once

#include <cstdint>

#include "tools/programs/allreduce/options.hpp"
#include "tools/programs/job.hpp"

namespace gtopk::programs::allreduce {

/// Elements above which the sequential reference takes too long: some 10 s on one core.
inline constexpr std::uint64_t kMostChecked = 1UL << 22U;

struct Verdict {
  /// Elements of tensors and residuals that are not the reference's, on all ranks.
  std::uint64_t wrong = 0;
  /// The largest |sum over ranks of (acc - residual) - result| over the largest |result|.
  double mass_error = 0;
};

/// Two steps, the second with the first one's residual, on every rank.
[[nodiscard]] Verdict check(Job& job, const Setting& setting);

/// Ranks whose tensor is not rank 0's.
[[nodiscard]] std::uint64_t ranks_that_differ(Job& job, std::uint64_t checksum);

}  // namespace gtopk::programs::allreduce
