// Sparse, algorithms: code shared by all calls whose tensor and residual are on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gtopk/collective.hpp"
#include "gtopk/detached.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/resolved_call.hpp"

namespace gtopk::sparse {

[[nodiscard]] SparseCall detached_call(std::uint64_t d, DataType dtype,
                                       const SparseOptions& options, const Delivered& delivered);

/// The rule by which a device makes the call's selection; nullopt if no device can.
[[nodiscard]] std::optional<SelectionRule> rule_on_device(const SparseCall& call,
                                                          const ResolvedCall& resolved);

[[nodiscard]] DetachedCapacity capacity_of(const ResolvedCall& resolved, std::uint32_t ranks);

/// Runs the exchange and makes the edits for a selection that a device has made. `turn` is as in
/// sparse_all_reduce().
engine::Task<void> run_detached(engine::GroupView& group, Detached step, SparseCall call,
                                ResolvedCall resolved, std::unique_ptr<engine::Turn> turn);

}  // namespace gtopk::sparse
