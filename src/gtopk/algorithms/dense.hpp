// Sparse, algorithms: the variants of `dense` on a wire that codes values.
#pragma once

#include <memory>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"

namespace gtopk::sparse {

/// See AlgorithmRow::coded.
engine::Task<void> dense_coded(engine::GroupView& group, SparseCall call, const BlockCoder& coder,
                               std::unique_ptr<engine::Turn> turn);
engine::Task<void> dense_placed_coded(engine::GroupView& group, SparseCall call,
                                      const BlockCoder& coder, std::unique_ptr<engine::Turn> turn);

}  // namespace gtopk::sparse
