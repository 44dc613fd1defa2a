// Sparse, algorithms room: what calls have in common whose tensor and residual are on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "gtopk/collective.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/gtopk/algorithms/call_plan.hpp"

namespace gtopk::sparse {

[[nodiscard]] SparseCall detached_call(std::uint64_t d, DataType dtype,
                                       const SparseOptions& options, const Delivered& delivered);

/// How a device makes the call's selection; nullopt if none can.
[[nodiscard]] std::optional<SelectionRule> rule_on_device(const SparseCall& call, const Plan& plan);

/// Throws Error{kInvalidArgument} if there is not enough room to record the result.
[[nodiscard]] std::function<void(const GroupShape&)> check_of_room(const Plan& plan,
                                                                   const Delivered& delivered);

}  // namespace gtopk::sparse
