// Sparse, plan room: what messages cost between the ranks of a group, and one set of costs that all
// of them have, bit for bit.
#pragma once

#include "gtopk/plan.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

/// Partners of the fold and of every round swap messages of two sizes, all pairs of a round at
/// once, as in the exchanges that are to be predicted: alpha from the short ones, beta from what
/// the long ones take beyond that. Each cost is the largest of any rank; of alpha and beta that of
/// each round, averaged over the rounds. At most 8 messages of 64 bytes and 3 of 64 KiB for each
/// round. Throws Error{kMismatch} where ranks called something else.
engine::Task<Costs> measure_costs(engine::GroupView& group);

}  // namespace gtopk::sparse
