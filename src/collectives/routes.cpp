#include "src/collectives/routes.hpp"

#include <algorithm>

#include "src/collectives/host_rings.hpp"

namespace gtopk::collectives {
namespace {

using engine::HostMap;

/// Counts the messages of one step at the hosts that they leave or enter.
class Step {
 public:
  explicit Step(const HostMap& hosts) : hosts_(hosts), out_(hosts.hosts()), in_(hosts.hosts()) {}

  void message(std::uint32_t from, std::uint32_t to) {
    if (hosts_.host_of(from) == hosts_.host_of(to)) {
      return;
    }
    route_.crossing =
        std::max({route_.crossing, ++out_[hosts_.host_of(from)], ++in_[hosts_.host_of(to)]});
  }
  [[nodiscard]] Route route() const { return route_; }

 private:
  const HostMap& hosts_;
  std::vector<std::uint32_t> out_;
  std::vector<std::uint32_t> in_;
  Route route_;
};

}  // namespace

Routes::Routes(const HostMap& hosts)
    : tree_(hosts.ranks()),
      hosts_(hosts.hosts()),
      two_levels_(collectives::HostRings::two_levels(hosts)) {
  for (std::uint32_t host = 0; host < hosts_; ++host) {
    largest_ = std::max(largest_, static_cast<std::uint32_t>(hosts.ranks_of(host).size()));
  }
  const std::uint32_t ranks = hosts.ranks();
  Step folding(hosts);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (tree_.folded_away(rank)) {
      folding.message(rank, Tree::fold_partner(rank));
    }
  }
  fold_ = folding.route();
  for (std::uint32_t round = 0; round < tree_.rounds(); ++round) {
    Step swapping(hosts);
    Step handing_over(hosts);
    for (std::uint32_t leaf = 0; leaf < tree_.leaves(); ++leaf) {
      const std::uint32_t rank = tree_.rank_of(leaf);
      const std::uint32_t partner = tree_.partner(rank, round);
      swapping.message(rank, partner);
      // This is the first leaf of an upper subtree if bit `round` is set, and none below it.
      if ((leaf & ((2U << round) - 1)) == 1U << round) {
        handing_over.message(rank, partner);
      }
    }
    swaps_.push_back(swapping.route());
    hand_overs_.push_back(handing_over.route());
  }
}

Route Routes::announcement() const {
  Route all = fold_;
  for (const Route route : hand_overs_) {
    all.crossing += route.crossing;
  }
  return all;
}

}  // namespace gtopk::collectives
