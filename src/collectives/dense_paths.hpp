// Collectives: the ways that a dense collective may take, and which one is predicted to be the
// quickest. Up to kRecursiveDoublingBytes a reduction goes along the tree or directly
// (direct.hpp), with the same bits, an all-gather directly or round the rings, a short broadcast
// directly or along the tree; a larger one goes along a tree of the hosts or down a chain of them.
// So what messages cost decides how long a call takes and never its result. Pure functions of
// numbers that are the same on all ranks: all choose alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/engine/host_map.hpp"

namespace gtopk::collectives {

/// Nanoseconds, the same on all ranks.
struct PathCosts {
  double tree = 0;    ///< headers along the tree, until all have ended
  double direct = 0;  ///< a header from each rank to every other
  double byte = 0;    ///< a byte on a host's link; on a single host, one that a rank sends
};

/// What GTOPK_DENSE says: the quicker way, or always the same.
enum class PathSetting : std::uint8_t {
  kAuto,
  kTree,
  kDirect,
};

/// From the environment. Throws Error{kInvalidArgument} for any other value.
[[nodiscard]] PathSetting path_setting();

/// As GTOPK_DENSE says it.
[[nodiscard]] std::string to_string(PathSetting setting);

class DensePaths {
 public:
  /// Larger groups do not go directly: every rank would have to connect to every other.
  static constexpr std::uint32_t kMostRanks = 32;

  explicit DensePaths(const engine::HostMap& hosts);

  /// Of links that nobody has measured.
  [[nodiscard]] PathCosts usual() const;

  // Whether it takes less time than the other way. `bytes`: of all elements, or of all parts.
  [[nodiscard]] bool reduce_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool reduce_scatter_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool gather_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool broadcast_directly(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] bool broadcast_down_a_chain(std::size_t bytes, const PathCosts& costs) const;

  [[nodiscard]] bool may_go_directly() const { return ranks_ <= kMostRanks; }
  /// Whether there are several hosts, and one of them has several ranks.
  [[nodiscard]] bool share_links() const { return hosts_ > 1 && hosts_ < ranks_; }
  [[nodiscard]] std::uint32_t hosts() const { return static_cast<std::uint32_t>(hosts_); }

  /// How many messages the busiest link carries while each rank sends one to every other.
  [[nodiscard]] double direct_messages() const { return direct_messages_; }

 private:
  /// Of a message of the tree.
  [[nodiscard]] double alpha(const PathCosts& costs) const { return costs.tree / tree_steps_; }
  [[nodiscard]] double along_tree(std::size_t bytes, const PathCosts& costs) const;
  [[nodiscard]] double directly(std::size_t bytes, const PathCosts& costs) const;

  double ranks_;
  double hosts_;
  /// Ranks of each host where rings go by two levels, else 0.
  double each_;
  /// Messages one after the other along the tree.
  double tree_steps_ = 0;
  /// How often the busiest link carries what one rank sends meanwhile.
  double tree_loads_ = 0;
  double direct_messages_ = 0;
  /// How many of a root's messages to all others leave its host, or its rank on a single host.
  double broadcast_messages_ = 0;
};

}  // namespace gtopk::collectives
