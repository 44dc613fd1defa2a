// Sparse, algorithms: one gradient from start to end: resolve, select, exchange and commit.
#pragma once

#include <memory>

#include "gtopk/collective.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/resolved_call.hpp"

namespace gtopk::sparse {

/// The call as a value; see gtopk/collectives.hpp. Throws Error{kInvalidArgument}.
[[nodiscard]] Collective collective(SparseCall call);

/// Runs the call. Throws Error{kMismatch, kPeerFailed, kTimeout, kAborted}; tensor and residual are
/// then unchanged. After NaN or infinity on any rank, or an overflow, the tensor is NaN on every
/// rank and the residual is unchanged. `turn` is the operation's place in line if it already has
/// one, or null.
engine::Task<void> sparse_all_reduce(engine::GroupView& group, SparseCall call,
                                     ResolvedCall resolved, std::unique_ptr<engine::Turn> turn);

}  // namespace gtopk::sparse
