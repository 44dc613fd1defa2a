// Collectives: which links the steps of an exchange use, from the tree and the map of hosts alone.
// Pure arithmetic, the same on all ranks; computed once per group.
#pragma once

#include <cstdint>
#include <vector>

#include "src/collectives/tree.hpp"
#include "src/engine/host_map.hpp"

namespace gtopk::collectives {

/// The route of one step, whose messages leave at once.
struct Route {
  /// The most ranks of one host that send to, or receive from, other hosts: they share its link. 0:
  /// every message stays inside its host.
  std::uint32_t crossing = 0;
};

/// Each message stays inside its host.
inline constexpr Route kWithin{0};
/// One message leaves or enters each host.
inline constexpr Route kOneOfEachHost{1};

class Routes {
 public:
  explicit Routes(const engine::HostMap& hosts);

  [[nodiscard]] const Tree& tree() const { return tree_; }
  [[nodiscard]] std::uint32_t hosts() const { return hosts_; }
  /// Ranks of the host that has the most.
  [[nodiscard]] std::uint32_t largest_host() const { return largest_; }

  /// From ranks 2j + 1 to 2j, or back.
  [[nodiscard]] Route fold() const { return fold_; }
  /// Each leaf with its partner in the round, both ways.
  [[nodiscard]] Route swap(std::uint32_t round) const { return swaps_.at(round); }
  /// In a binomial tree: from the first leaf of the upper of each two subtrees to that of the lower
  /// one, or back.
  [[nodiscard]] Route hand_over(std::uint32_t round) const { return hand_overs_.at(round); }
  /// Ranks of each host if large dense reductions use two levels of rings, else 0 (host_rings.hpp).
  [[nodiscard]] std::uint32_t two_levels() const { return two_levels_; }
  /// With one level: each rank to the next one, host after host, and the last to the first.
  [[nodiscard]] Route ring() const { return hosts_ == 1 ? kWithin : kOneOfEachHost; }
  /// Fold and a binomial tree together: the path of headers that say what was called.
  [[nodiscard]] Route announcement() const;

 private:
  Tree tree_;
  std::uint32_t hosts_;
  std::uint32_t largest_ = 0;
  std::uint32_t two_levels_;
  Route fold_;
  std::vector<Route> swaps_;
  std::vector<Route> hand_overs_;
};

}  // namespace gtopk::collectives
