// Sparse, plan room: what messages cost between the ranks of a group, and one set of costs that is
// the same on all of them, bit for bit.
#pragma once

#include <cstdint>

#include "gtopk/plan.hpp"
#include "src/collectives/routes.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

using collectives::Routes;

/// The bytes of long messages that a rank sends at most, to measure for tensors of that many bytes:
/// an eighth of them, which is less than an eighth of what a dense all-reduce sends. But three of 4
/// KiB on each link in any case.
[[nodiscard]] std::uint64_t long_bytes_for(std::uint64_t tensor_bytes, const Routes& routes);

/// Whether larger tensors would be measured for with no more bytes.
[[nodiscard]] bool measures_all(std::uint64_t tensor_bytes, const Routes& routes);

/// Links inside hosts and links between them apart: the ranks of each host swap messages of two
/// sizes along a tree of theirs, all pairs of a round at once; then so do the hosts' lowest ranks
/// along a tree of the hosts, so that nobody shares a host's link. alpha is the mean of the short
/// ones, swapped as the steps of a call follow one another; beta is what the long ones take beyond
/// the fastest of those. Each cost is the largest of any rank; of alpha and beta that of each
/// round, averaged over the rounds. In a round at most 48 messages of 64 bytes, then long ones
/// within long_bytes_for(tensor_bytes): 3 of up to 64 KiB, and, as ten milliseconds are enough for
/// them, up to 12 as long or, where a millisecond is enough for one, up to 1 MiB. Throws
/// Error{kMismatch} where ranks called something else.
engine::Task<Costs> measure_costs(engine::GroupView& group, const Routes& routes,
                                  std::uint64_t tensor_bytes);

}  // namespace gtopk::sparse
