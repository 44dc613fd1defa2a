// Collectives: the rings that move large data with the least traffic: 2 d (P-1)/P elements per rank
// to reduce, half of that if each rank keeps one part of the result, and half to gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gtopk/types.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// In place; P >= 2; all ranks have agreed on d, type and op. Takes 2(P-1) steps.
engine::Task<void> ring_all_reduce(engine::GroupView& group, void* data, std::uint64_t d,
                                   DataType type, ReduceOp op, std::uint32_t first_step);

/// P >= 2; all ranks have agreed on type, op and the sizes of the parts. Writes the sum of part
/// `rank` to `output`, which may be that part itself. Takes P-1 steps; AVG adds.
engine::Task<void> ring_reduce_scatter(engine::GroupView& group, std::span<const Segment> parts,
                                       void* output, DataType type, ReduceOp op,
                                       std::uint32_t first_step);

/// rooms: one per rank, of sizes that all ranks have agreed on; the own one holds this rank's
/// bytes. Takes P-1 steps.
engine::Task<void> ring_all_gather(engine::GroupView& group, std::span<const Bytes> rooms,
                                   std::uint32_t first_step);

}  // namespace gtopk::collectives
