// gtopk-info --doctor: all ranks of a job test the links between their hosts, pair by pair.
#pragma once

#include "tools/programs/job.hpp"

namespace gtopk::programs::info {

/// Tests the links; rank 0 prints the result as text or as JSON. Returns the exit code: kFailed if
/// a rank has not come or a pair could not be tested. Throws UsageError, Error.
[[nodiscard]] int doctor(const JobOptions& options, bool json);

}  // namespace gtopk::programs::info
