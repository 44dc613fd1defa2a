// Sparse, algorithms: `gtopk-placed`: gTop-k whose tree follows the hosts. The ranks of a host
// are merged first, along their own tree; then one list per host crosses the network, as in `gtopk`
// with as many ranks.
//
// It is Shi et al., arXiv 1901.04359, Alg. 3, over ranks in an order that the paper leaves open.
// Unlike in `hierarchical`, nodes inside hosts re-select, too, so a host's lists go up a tree
// instead of to its leader one after the other.
#include <algorithm>

#include "src/engine/host_map.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/announcement.hpp"
#include "src/gtopk/algorithms/binomial.hpp"
#include "src/gtopk/algorithms/doubling.hpp"
#include "src/gtopk/algorithms/leaders.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::HostMap;
using engine::Task;

Task<List> inside_and_between(ListExchange& exchange, List mine) {
  const HostMap& hosts = exchange.group().hosts();
  if (hosts.hosts() == 1 || hosts.hosts() == hosts.ranks()) {
    Task<List> walking = walk_tree(exchange, mine, doubling<ListExchange>);
    const List result = co_await walking;
    co_return result;
  }
  Announcement announcement(exchange.group());
  co_await announcement.heard();

  // No two ranks meet in both walks, so their steps may share numbers.
  const std::uint32_t first_step = Tree(hosts.ranks()).end_step();
  const std::uint32_t rank = exchange.group().rank();
  const auto members = hosts.ranks_of(hosts.host_of(rank));
  const Tree tree(static_cast<std::uint32_t>(members.size()));
  const auto member = [members](std::uint32_t place) { return members[place]; };
  const auto place = static_cast<std::uint32_t>(std::ranges::find(members, rank) - members.begin());
  const auto cross = [&](List list) { return between_hosts(exchange, first_step, list); };
  Numbered host(exchange, member, first_step);
  const auto walk = [&cross](decltype(host)& among, const Tree& along, std::uint32_t at,
                             List list) { return up_and_down(among, along, at, list, cross); };
  Task<List> walking = collectives::folded(host, tree, place, mine, walk);
  const List result = co_await walking;
  co_return result;
}

/// The path of the largest host's leader: up its tree, between hosts, and down.
void placed_cost(CriticalPath& path) {
  const Routes& routes = path.routes();
  if (routes.hosts() == 1 || routes.hosts() == path.tree().ranks()) {
    return kGtopk.cost(path);
  }
  const std::uint64_t k = path.shape().k;
  const Tree host(routes.largest_host());
  const std::uint32_t nodes = host.rounds() + (host.folds(0) ? 1 : 0);
  path.sweep(k);
  path.message(0, routes.announcement());
  for (std::uint32_t node = 0; node < nodes; ++node) {
    path.node(k, kWithin);
  }
  path.doubling(Tree(routes.hosts()), kOneOfEachHost);
  for (std::uint32_t node = 0; node < nodes; ++node) {
    path.list(k, Holds::kSelection, kWithin);
  }
}

}  // namespace

const AlgorithmRow kGtopkPlaced{
    .name = "gtopk-placed",
    .description = "gTop-k along the hosts: first inside each, then one list per host",
    .walk = inside_and_between,
    .cost = placed_cost,
    .keeps = Semantics::kGtopk};

}  // namespace gtopk::sparse
