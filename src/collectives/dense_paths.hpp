// Collectives: the paths that a dense collective may take, and the prediction of the quickest one.
// Up to kRecursiveDoublingBytes, a reduction goes along the tree or directly (direct.hpp), with the
// same bits, an all-gather directly or round the rings, and a short broadcast directly or along the
// tree; a larger broadcast goes along a tree or down a chain of the hosts. So the cost of messages
// affects how long a call takes but never its result. The predictions are pure functions of numbers
// that are the same on all ranks, so all ranks choose alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/engine/host_map.hpp"

namespace gtopk::collectives {

/// Costs in nanoseconds, the same on all ranks.
struct PathCosts {
  double tree = 0;    ///< headers along the tree, until all have ended
  double direct = 0;  ///< a header from each rank to every other
  double byte = 0;    ///< a byte on a host's link; on a single host, a byte sent by a rank
};

/// The values of GTOPK_DENSE: the quicker path, or always the same one.
enum class PathSetting : std::uint8_t {
  kAuto,
  kTree,
  kDirect,
};

/// The setting in the environment. Throws Error{kInvalidArgument} for any other value.
[[nodiscard]] PathSetting path_setting();

/// The value of GTOPK_DENSE.
[[nodiscard]] std::string to_string(PathSetting setting);

class DensePaths {
 public:
  /// Larger groups do not use the direct path, because every rank would have to connect to every
  /// other.
  static constexpr std::uint32_t kMostRanks = 32;

  explicit DensePaths(const engine::HostMap& hosts);

  /// The costs assumed for links that have not been measured.
  [[nodiscard]] PathCosts usual() const;

  // These say whether the direct path takes less time than the other path. `bytes` counts all
  // elements or all parts.
  [[nodiscard]] bool reduce_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool reduce_scatter_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool gather_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool broadcast_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool broadcast_down_a_chain(std::size_t bytes, const PathCosts& costs) const;

  [[nodiscard]] bool may_go_directly() const { return ranks_ <= kMostRanks; }
  /// Whether there are several hosts, and one of them has several ranks.
  [[nodiscard]] bool share_links() const { return hosts_ > 1 && hosts_ < ranks_; }
  [[nodiscard]] std::uint32_t hosts() const { return static_cast<std::uint32_t>(hosts_); }

  /// The number of messages on the busiest link while each rank sends one to every other.
  [[nodiscard]] double direct_messages() const { return direct_messages_; }

 private:
  /// The cost of one message of the tree.
  [[nodiscard]] double alpha(const PathCosts& costs) const { return costs.tree / tree_steps_; }
  [[nodiscard]] double along_tree(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] double directly(std::size_t bytes, const PathCosts& costs) const;

  double ranks_;
  double hosts_;
  /// The ranks of each host if rings use two levels, else 0.
  double each_;
  /// The number of messages one after the other along the tree.
  double tree_steps_ = 0;
  /// How many times the busiest link carries the bytes of one rank in that time.
  double tree_loads_ = 0;
  double direct_messages_ = 0;
  /// The number of a root's messages to all others that leave its host or, on a single host, its
  /// rank.
  double broadcast_messages_ = 0;
};

}  // namespace gtopk::collectives
