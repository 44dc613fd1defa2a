// Collectives: large reductions and gathers of all ranks of a group, by the rings that suit its
// hosts (host_rings.hpp). Their order of summation depends only on P, d, the element size and the
// host map. Part r belongs to rank r.
//
// With one ring, the sum of the part at place c starts with the values of the rank at place c+1,
// adds the values of c+2, ..., and ends at place c.
//
// With two levels, of R ranks on each of H hosts, each host first adds up the parts of all ranks
// with place j, starting with its rank at place j+1 and ending at place j. Then the sum of the part
// of place j on host h starts with the sum of host h+1, adds the sums of h+2, ..., and ends on host
// h. An all-reduce and a gather then go back the same way. A host's link carries 2 d (H-1)/H
// elements of an all-reduce, and half of that for the other collectives.
#pragma once

#include <cstdint>
#include <span>

#include "gtopk/types.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// Works in place. Requires P >= 2 and that all ranks have agreed on d, type and op. Takes at most
/// 2(P-1) steps; AVG only adds.
engine::Task<void> all_reduce_by_hosts(engine::GroupView& group, void* data, std::uint64_t d,
                                       DataType type, ReduceOp op, std::uint32_t first_step);

/// Requires P >= 2 and that all ranks have agreed on type, op and the sizes of the parts. Writes
/// the sum of part `rank` to `output`, which may be that part itself. Takes at most P-1 steps; AVG
/// only adds.
engine::Task<void> reduce_scatter_by_hosts(engine::GroupView& group, std::span<const Segment> parts,
                                           void* output, DataType type, ReduceOp op,
                                           std::uint32_t first_step);

/// `buffers` has one buffer per rank, of sizes on which all ranks have agreed; this rank's own
/// holds its bytes. Takes at most P-1 steps.
engine::Task<void> all_gather_by_hosts(engine::GroupView& group, std::span<const Bytes> buffers,
                                       std::uint32_t first_step);

}  // namespace gtopk::collectives
