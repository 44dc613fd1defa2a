// Sparse, plan: the cost of selecting, coding, merging and the like on this machine, timed for
// float32 by running each of them at the current speed of its shared cores. It does not know ranks.
#pragma once

#include "gtopk/plan.hpp"

namespace gtopk::sparse {

/// Sets all costs except the costs of messages and bytes. Takes about ten milliseconds and 30 MiB.
void measure_arithmetic(Costs& costs);

/// Computes for about a millisecond on a core, like selecting does before ranks exchange anything.
void keep_a_core_busy();

}  // namespace gtopk::sparse
