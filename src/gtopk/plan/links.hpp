// Sparse, plan: measures the cost of messages between the ranks of a group, as one set of costs
// that is the same on all ranks, bit for bit.
#pragma once

#include <cstdint>

#include "gtopk/plan.hpp"
#include "src/collectives/routes.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

using collectives::Routes;

/// The most bytes of long messages that a rank sends to measure for tensors of that size: an eighth
/// of the tensor, which is less than an eighth of what a dense all-reduce sends. In any case it
/// sends three messages of 4 KiB on each link.
[[nodiscard]] std::uint64_t long_bytes_for(std::uint64_t tensor_bytes, const Routes& routes);

/// Whether larger tensors would be measured with no more bytes.
[[nodiscard]] bool measures_all(std::uint64_t tensor_bytes, const Routes& routes);

/// Measures links inside hosts and between them separately: the ranks of each host swap messages of
/// two sizes along their own tree, all pairs of a round at once; then the hosts' lowest ranks do
/// the same along a tree of the hosts, so that no two share a host's link. alpha is the mean of the
/// short messages, which are swapped like the steps of a call; beta is the time that long messages
/// take beyond the fastest short one. Each cost is the largest of any rank; for alpha and beta it
/// is the largest in each round, averaged over the rounds. A round has at most 48 messages of 64
/// bytes, and then long ones within long_bytes_for(tensor_bytes): 3 of up to 64 KiB and, as far as
/// ten milliseconds are enough for them, up to 12 of the same length or, if a millisecond is enough
/// for one, of up to 1 MiB. Throws Error{kMismatch} if ranks called something else.
engine::Task<Costs> measure_costs(engine::GroupView& group, const Routes& routes,
                                  std::uint64_t tensor_bytes);

}  // namespace gtopk::sparse
