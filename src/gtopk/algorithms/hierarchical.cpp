// Sparse, algorithms: `hierarchical`: the exact sum of the selections inside each host, then gTop-k
// between hosts: one list per host crosses the network, for any number of ranks on a host.
//
// It has two levels as in hierarchical all-reduces (MSTopK and HiTopKComm: Shi et al., MLSys 2021,
// dense inside a host), but with lists on both. A host's leader is its lowest rank; host h is rank
// h of a tree of hosts.
#include "src/engine/host_map.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/announcement.hpp"
#include "src/gtopk/algorithms/doubling.hpp"
#include "src/gtopk/algorithms/leaders.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::HostMap;
using engine::Task;

Task<List> by_hosts(ListExchange& exchange, List mine) {
  const HostMap& hosts = exchange.group().hosts();
  if (hosts.hosts() == hosts.ranks()) {
    Task<List> walking = walk_tree(exchange, mine, doubling<ListExchange>);
    const List result = co_await walking;
    co_return result;
  }
  Announcement announcement(exchange.group());
  co_await announcement.heard();

  const std::uint32_t up = Tree(hosts.ranks()).end_step();
  const std::uint32_t down = up + 1;
  const std::uint32_t rank = exchange.group().rank();
  const std::uint32_t host = hosts.host_of(rank);
  const std::uint32_t leader = hosts.leader(host);
  if (rank != leader) {
    Task<List> handing_over = exchange.swap(leader, {up, down}, mine, hosts.ranks());
    const List result = co_await handing_over;
    co_return result;
  }

  // On a host, lists are added in rank order; the last addition selects.
  const auto others = hosts.ranks_of(host).subspan(1);
  for (const std::uint32_t other : others) {
    Task<List> receiving = exchange.receive(other, up, 1);
    const List theirs = co_await receiving;
    mine =
        other == others.back() ? exchange.merge(mine, theirs, rank) : exchange.unite(mine, theirs);
  }

  Task<List> walking = between_hosts(exchange, down + 1, mine);
  mine = co_await walking;

  for (const std::uint32_t other : others) {
    co_await exchange.send(other, down, mine);
  }
  co_return mine;
}

/// The path of the largest host's leader, which receives its host's lists one after the other.
void hierarchical_cost(CriticalPath& path) {
  const Routes& routes = path.routes();
  if (routes.hosts() == path.tree().ranks()) {
    return kGtopk.cost(path);
  }
  const std::uint64_t k = path.shape().k;
  const std::uint32_t others = routes.largest_host() - 1;
  path.sweep(k);
  path.message(0, routes.announcement());
  for (std::uint32_t other = 1; other <= others; ++other) {
    path.list(k, Holds::kSelection, kWithin);
    const std::uint64_t entries = path.united(other) + k;
    other == others ? path.merge(entries, k) : path.unite(entries);
  }
  path.doubling(Tree(routes.hosts()), kOneOfEachHost);
  for (std::uint32_t other = 1; other <= others; ++other) {
    path.list(k, Holds::kSelection, kWithin);
  }
}

}  // namespace

const AlgorithmRow kHierarchical{
    .name = "hierarchical",
    .description = "the exact sum inside each host, then gTop-k between hosts",
    .walk = by_hosts,
    .cost = hierarchical_cost,
    .keeps = Semantics::kGtopk};

}  // namespace gtopk::sparse
