// Collectives: the cost of messages in a group, for the choice between paths: usual values at
// first, then the values that the group has measured. Every rank has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gtopk/error.hpp"
#include "src/collectives/dense_paths.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/per_group_state.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// The paths and costs of a group; there is one object per group.
struct KnownPaths {
  /// The first collective of a group that may measure, so that groups with few calls never pay for
  /// it.
  static constexpr std::uint64_t kMeasuredFrom = 64;

  PathSetting setting = PathSetting::kAuto;
  std::optional<DensePaths> paths;
  std::optional<PathCosts> measured;
  std::uint64_t measured_by = 0;  ///< the collective's number
};

/// Returns the group's object, with its paths.
[[nodiscard]] KnownPaths& ways_of(engine::GroupView& group);

/// An operation's choice between two paths. If it fails at the very end of measuring, some ranks
/// may know costs that others do not. The next operation with a choice detects that by the headers
/// and fails on every rank, and the ranks that knew the costs forget them.
class PathChoice {
 public:
  /// One of DensePaths' functions that tell whether it is quicker not to go along the tree.
  using Question = bool (DensePaths::*)(std::size_t bytes, const PathCosts& costs) const;
  /// Reductions and broadcasts of at most this size go along the tree, because messages dominate
  /// their cost.
  static constexpr std::size_t kFewBytes = 1024;

  explicit PathChoice(engine::GroupView& group) : group_(group), known_(ways_of(group)) {}

  [[nodiscard]] const DensePaths& paths() const { return *known_.paths; }
  [[nodiscard]] PathSetting setting() const { return known_.setting; }

  /// Answers from costs that are known or fixed. Must be awaited before anything else. From
  /// kMeasuredFrom on, the first operation that asks measures, and operations that start meanwhile
  /// wait for it. It measures five times: headers along the tree, headers directly, and at most 96
  /// KiB of each rank directly. Throws Error{kMismatch} if ranks called something else.
  [[nodiscard]] engine::Task<bool> directly(Question question, std::size_t bytes);
  /// Notifies observers which path it takes.
  void take(bool directly) { group_.enter(directly ? "directly" : "along the tree"); }

 private:
  engine::GroupView& group_;
  KnownPaths& known_;
};

/// Called by Collective::failed of collectives that choose. Forgets the costs that an earlier
/// collective of the group measured, if this one failed because other ranks do not know them. After
/// any other failure, which may be on this rank alone, the costs are kept.
void forget_paths(engine::PerGroupState& per_group_state, std::uint64_t number, const Error& error);

}  // namespace gtopk::collectives
