// Collectives: a reduction of which each rank gets one part. Its order of summation depends on the
// sizes of the parts and the element size alone, and is the all-reduce's:
//
// Up to kRecursiveDoublingBytes over all parts: an all-reduce of them side by side, of which a rank
// keeps its own. Latency is what counts here, and that takes no more rounds than to agree. Larger:
// all ranks agree first, then the first half of the all-reduce's ring: part c starts with rank
// c+1's values, gathers rank c+2's, ..., and ends at rank c. A rank sends (P-1)/P of the elements,
// the least possible.
#pragma once

#include <cstdint>
#include <span>

#include "gtopk/types.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// P >= 2; all ranks have agreed on type, op and the sizes of the parts. Writes the sum of part
/// `rank` to `output`, which may be that part itself. Takes P-1 steps; AVG adds.
engine::Task<void> ring_reduce_scatter(engine::GroupView& group, std::span<const Segment> parts,
                                       void* output, DataType type, ReduceOp op,
                                       std::uint32_t first_step);

}  // namespace gtopk::collectives
