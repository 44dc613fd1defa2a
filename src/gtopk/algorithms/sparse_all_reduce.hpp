// Sparse, algorithms room: the whole way of one gradient: plan, select, exchange, commit.
#pragma once

#include <memory>
#include <string_view>

#include "gtopk/collective.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/select/selector.hpp"

namespace gtopk::sparse {

/// What follows from a call's arguments alone, the same on every rank that made the same call.
struct Plan {
  const AlgorithmRow* algorithm = nullptr;
  const SelectorRow* selector = nullptr;
  const CodecRow* codec = nullptr;
  ListPlan lists;

  /// Whether k is of each block of a rank's selection.
  [[nodiscard]] bool selects_per_block() const {
    return algorithm->selects() && selector->per_block;
  }
  /// That the result among so many ranks can have. One rank's selection is its result.
  [[nodiscard]] std::uint64_t most_entries(std::uint32_t ranks) const {
    if (!algorithm->bounded) return lists.entries_of(ranks);
    return ranks == 1 ? lists.leaf : lists.k;
  }
};

/// Throws Error{kInvalidArgument} for a call that no rank may make.
[[nodiscard]] Plan plan(const SparseCall& call);
/// What all ranks must agree on; algorithm: as the call names it.
[[nodiscard]] Agreement agreement(const SparseCall& call, const Plan& plan,
                                  std::string_view algorithm);
[[nodiscard]] inline Agreement agreement(const SparseCall& call, const Plan& plan) {
  return agreement(call, plan, plan.algorithm->name);
}

/// The call as a value; see gtopk/collectives.hpp. Throws Error{kInvalidArgument}.
[[nodiscard]] Collective collective(SparseCall call);

/// Throws Error{kMismatch, kPeerFailed, kTimeout, kAborted}; tensor and residual are then as they
/// were. NaN or infinity on any rank, or an overflow: the tensor is NaN on every rank and the
/// residual as it was. turn: the operation's place in line where it has one already, or null.
engine::Task<void> sparse_all_reduce(engine::GroupView& group, SparseCall call, Plan plan,
                                     std::unique_ptr<engine::Turn> turn);

}  // namespace gtopk::sparse
