// Sparse, plan: the costs that a group's ranks have agreed on, and when they are measured. The
// first operation that needs costs measures them; operations that start meanwhile wait for it in
// call order. A later operation measures again once the costs are old, or if its tensor is much
// larger.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "gtopk/collective.hpp"
#include "gtopk/error.hpp"
#include "gtopk/plan.hpp"
#include "src/collectives/routes.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/per_group_state.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

using collectives::Routes;

/// The planner of a group; there is one object per group.
struct Planner {
  /// Costs are measured again after this many collectives of the group, of any kind.
  static constexpr std::uint64_t kRefreshAfter = 10000;
  /// Costs are measured again for a tensor more than this many times as large as the one for which
  /// they were measured, because the bytes sent to measure them are a fraction of the tensor.
  static constexpr std::uint64_t kGrowth = 8;

  std::optional<Costs> costs;
  /// The links that the group's messages use.
  std::optional<Routes> routes;
  /// The number of the collective that measured the costs.
  std::uint64_t measured_by = 0;
  /// The largest tensor, in bytes, for which the costs are valid.
  std::uint64_t good_for = std::numeric_limits<std::uint64_t>::max();
  /// The collectives under way that may measure; later ones wait for their costs.
  std::set<std::uint64_t> measuring;

  /// Whether the group's collective of that number, with a tensor of that many bytes, may use these
  /// costs. The result is the same on all ranks.
  [[nodiscard]] bool knows(std::uint64_t sequence, std::uint64_t tensor_bytes) const {
    return costs && sequence < measured_by + kRefreshAfter && tensor_bytes <= good_for &&
           (measuring.empty() || sequence <= *measuring.begin());
  }
};

/// The group's planner, with its routes.
[[nodiscard]] Planner& planner_of(engine::GroupView& group);

/// Completes when the planner has costs for this operation, whose tensor has that many bytes. Must
/// be awaited before anything else. If it had to wait, `turn` is this operation's place in line,
/// taken when it began; keep it for long lists, or else release it. With `anew`, it measures in any
/// case. `asked` is what ranks agree on before and while they measure. The caller then agrees on
/// with_costs(). If the operation fails at the very end of measuring, some ranks may know costs
/// that others do not. The next operation that needs them then fails on every rank, and all ranks
/// forget the costs.
engine::Task<void> know_costs(engine::GroupView& group, std::unique_ptr<engine::Turn>& turn,
                              std::uint64_t tensor_bytes, bool anew, Agreement asked);

/// The agreement of an operation that uses these costs.
[[nodiscard]] Agreement with_costs(Agreement asked, const Planner& planner);

/// Called by Collective::failed of operations that need costs. Forgets the costs that an earlier
/// collective of the group measured, if this one failed because other ranks have different costs or
/// none. After any other failure, which may be on this rank alone, the costs are kept.
void forget_costs(engine::PerGroupState& per_group_state, std::uint64_t number, const Error& error);

}  // namespace gtopk::sparse
