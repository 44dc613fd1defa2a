// Collectives: the rings that move large data with the least traffic: 2 d (n-1)/n elements per rank
// to reduce among n ranks, half of that if each rank keeps one part of the result, and half to
// gather. A ring goes through some or all ranks of a group. These ranks have agreed on type, op and
// the sizes of the parts. The part of a place is the one whose sum ends at that place's rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gtopk/types.hpp"
#include "src/collectives/ring_parts.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// The ranks of a ring, each sending to the next, and this rank's place among them.
struct Ring {
  std::span<const std::uint32_t> ranks;
  std::uint32_t place = 0;

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(ranks.size()); }
};

/// Works in place. Takes 2(n-1) steps; AVG only adds.
engine::Task<void> ring_all_reduce(engine::GroupView& group, Ring ring, RingParts parts,
                                   DataType type, ReduceOp op, std::uint32_t first_step);

/// Runs the first n-1 of these steps, in place. Afterwards this rank's part is its sum; the other
/// parts are partial sums.
engine::Task<void> ring_reduce(engine::GroupView& group, Ring ring, RingParts parts, DataType type,
                               ReduceOp op, std::uint32_t first_step);

/// Requires n >= 2. Computes the same sums and writes this rank's to `output`, a part cut like the
/// others, which may be this rank's part itself. The other parts are unchanged. Takes n-1 steps;
/// AVG only adds.
engine::Task<void> ring_reduce_scatter(engine::GroupView& group, Ring ring, RingParts parts,
                                       RingParts output, DataType type, ReduceOp op,
                                       std::uint32_t first_step);

/// `buffers` has the same number of buffers for each place, place after place, of sizes on which
/// all ranks have agreed; this rank's own hold its bytes. Takes n-1 steps.
engine::Task<void> ring_all_gather(engine::GroupView& group, Ring ring,
                                   std::span<const Bytes> buffers, std::uint32_t first_step);

}  // namespace gtopk::collectives
