// Sparse, algorithms: `auto`: the algorithm that the planner picks for a call, among those
// that its semantics allow.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "gtopk/collective.hpp"
#include "gtopk/plan.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"

namespace gtopk::sparse {

/// The call with each algorithm that has a cost function and satisfies options.semantics, in
/// registry order; at least one. Throws Error{kInvalidArgument} for an invalid call.
[[nodiscard]] std::vector<ResolvedCall> candidates(const SparseCall& call);

/// The call as a value, with the algorithm that is cheapest when it runs.
[[nodiscard]] Collective automatic(const SparseCall& call);
/// The same for a tensor on a device, whose selection is valid for any list algorithm.
[[nodiscard]] Collective automatic(const SparseCall& call, const Detached& selected);

/// The rule by which a device makes the selection for each list algorithm among these; nullopt if
/// there is no list algorithm, or if no device can make the selection.
[[nodiscard]] std::optional<SelectionRule> rule_of_lists(const SparseCall& call,
                                                         const std::vector<ResolvedCall>& calls);

/// Reports what `auto` would choose; nothing is reduced. `anew`: whether to measure the costs even
/// if they are known.
[[nodiscard]] Collective planning(const SparseCall& call, PlanReport& report, bool anew);

}  // namespace gtopk::sparse
