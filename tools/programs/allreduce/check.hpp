// gtopk-allreduce: checks that tensor and residuals are what the contract says, bit for bit, and
// that all that was selected is still there afterwards.
#pragma once

#include <cstdint>

#include "tools/programs/allreduce/options.hpp"
#include "tools/programs/allreduce/subject.hpp"
#include "tools/programs/job.hpp"

namespace gtopk::programs::allreduce {

/// Beyond this many elements the sequential reference takes too long: about 10 s on one core.
inline constexpr std::uint64_t kMostChecked = 1UL << 22U;

struct Verdict {
  /// Elements of tensors and residuals that differ from the reference's, over all ranks.
  std::uint64_t wrong = 0;
  /// The largest |sum over ranks of (acc - residual) - result| over the largest |result|.
  double mass_error = 0;
};

/// Checks two steps on every rank, the second with the first one's residual.
[[nodiscard]] Verdict check(Job& job, const Setting& setting, const Device* device);

/// The number of ranks whose tensor differs from rank 0's.
[[nodiscard]] std::uint64_t ranks_that_differ(Job& job, std::uint64_t checksum);

}  // namespace gtopk::programs::allreduce
