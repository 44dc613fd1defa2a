// Sparse, plan: the cost of selecting, coding, merging and the like on this machine, timed for
// float32 by running each of them, at the speed that its shared cores have now. It knows no ranks.
#pragma once

#include "gtopk/plan.hpp"

namespace gtopk::sparse {

/// Sets all costs except those of messages and bytes. Takes some ten milliseconds and 30 MiB.
void measure_arithmetic(Costs& costs);

/// Computes for about a millisecond of a core, as selecting does before ranks exchange anything.
void keep_a_core_busy();

}  // namespace gtopk::sparse
