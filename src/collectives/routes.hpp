// Collectives: which links the steps of an exchange use, computed from only the tree and the map of
// hosts. This is pure arithmetic, gives the same result on all ranks, and is computed once per
// group.
#pragma once

#include <cstdint>
#include <vector>

#include "src/collectives/tree.hpp"
#include "src/engine/host_map.hpp"

namespace gtopk::collectives {

/// The route of one step, whose messages leave at once.
struct Route {
  /// The most ranks of one host that send to, or receive from, other hosts: they share its link. 0
  /// means that every message stays inside its host.
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
  /// The number of ranks on the host that has the most.
  [[nodiscard]] std::uint32_t largest_host() const { return largest_; }

  /// The route from ranks 2j + 1 to 2j, or back.
  [[nodiscard]] Route fold() const { return fold_; }
  /// The route between each leaf and its partner in the round, both ways.
  [[nodiscard]] Route swap(std::uint32_t round) const { return swaps_.at(round); }
  /// In a binomial tree: the route from the first leaf of the upper of two subtrees to the first
  /// leaf of the lower one, or back.
  [[nodiscard]] Route hand_over(std::uint32_t round) const { return hand_overs_.at(round); }
  /// The ranks of each host if large dense reductions use two levels of rings, else 0
  /// (host_rings.hpp).
  [[nodiscard]] std::uint32_t two_levels() const { return two_levels_; }
  /// With one level: the route from each rank to the next one, host after host, and from the last
  /// to the first.
  [[nodiscard]] Route ring() const { return hosts_ == 1 ? kWithin : kOneOfEachHost; }
  /// The routes of fold and a binomial tree together, which is the path of headers that announce a
  /// call.
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
