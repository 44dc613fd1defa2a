// Sparse, algorithms room: `dense`, the algorithm that sends the whole acc and leaves no residual.
// What sparse results are compared with.
#pragma once

#include "engine/group_view.hpp"
#include "engine/task.hpp"
#include "gtopk/algorithms/sparse_all_reduce.hpp"

namespace gtopk::sparse {

/// acc travels in the accumulation type; see collectives/all_reduce.hpp for the order of summation.
template <class T>
engine::Task<void> dense(engine::GroupView& group, SparseCall call);

}  // namespace gtopk::sparse
