// Collectives: what messages cost in a group, for the choice between ways: the usual at first, and
// what the group has measured since. Every rank has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/collectives/ways.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// One per group, in its keepsakes.
struct KnownWays {
  /// The first collective of a group that may measure: groups with few calls never pay for it.
  static constexpr std::uint64_t kMeasuredFrom = 64;

  WaySetting setting = WaySetting::kAuto;
  std::optional<Ways> ways;
  std::optional<WayCosts> measured;
};

/// With its ways.
[[nodiscard]] KnownWays& ways_of(engine::GroupView& group);

/// An operation's choice between two ways. If the operation fails, what was measured is forgotten,
/// as it may not have got to every rank. Ranks that then choose differently tell by the headers and
/// fail once more, and all have forgotten.
class WayChoice {
 public:
  /// One of a Ways' questions: whether it is quicker not to go along the tree.
  using Question = bool (Ways::*)(std::size_t bytes, const WayCosts& costs) const;
  /// Reductions of so few bytes go along the tree: what they take is messages.
  static constexpr std::size_t kFewBytes = 1024;

  explicit WayChoice(engine::GroupView& group) : group_(group), known_(ways_of(group)) {}
  WayChoice(const WayChoice&) = delete;
  WayChoice& operator=(const WayChoice&) = delete;
  WayChoice(WayChoice&&) = delete;
  WayChoice& operator=(WayChoice&&) = delete;
  ~WayChoice() {
    if (!succeeded_) {
      known_.measured.reset();
    }
  }

  [[nodiscard]] const Ways& ways() const { return *known_.ways; }
  [[nodiscard]] WaySetting setting() const { return known_.setting; }

  /// The answer, by what is known or fixed. Must be awaited before anything else. From
  /// kMeasuredFrom on, the first operation that asks measures, and those that start meanwhile wait
  /// for it: five times headers along the tree, headers directly, and 96 KiB or less of each rank
  /// directly. Throws Error{kMismatch} where ranks called something else.
  [[nodiscard]] engine::Task<bool> directly(Question question, std::size_t bytes);
  /// Tells observers which way it goes.
  void take(bool directly) { group_.enter(directly ? "directly" : "along the tree"); }
  void succeeded() { succeeded_ = true; }

 private:
  engine::GroupView& group_;
  KnownWays& known_;
  bool succeeded_ = false;
};

}  // namespace gtopk::collectives
