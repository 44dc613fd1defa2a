// Sparse, algorithms room: `auto`: the algorithm that the planner takes for a call, among those
// that its semantics allow.
#pragma once

#include <string_view>
#include <vector>

#include "gtopk/collective.hpp"
#include "gtopk/plan.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"

namespace gtopk::sparse {

inline constexpr std::string_view kAuto = "auto";

/// The call as each algorithm would do it that has a cost and keeps options.semantics, in the order
/// of the registry; at least one. Throws Error{kInvalidArgument} for a call that no rank may make.
[[nodiscard]] std::vector<Plan> candidates(const SparseCall& call);

/// The call as a value, by the algorithm that is cheapest when it runs.
[[nodiscard]] Collective automatic(const SparseCall& call);

/// What `auto` would choose; nothing is reduced. anew: costs are measured, known or not.
[[nodiscard]] Collective planning(const SparseCall& call, PlanReport& report, bool anew);

}  // namespace gtopk::sparse
