// Sparse, algorithms room: `hierarchical`: the exact sum of the selections inside each host, then
// gTop-k between hosts: of each host one list crosses the network, whatever ranks it has.
//
// Two levels as in hierarchical all-reduces (MSTopK and HiTopKComm: Shi et al., MLSys 2021, dense
// inside a host), here of lists on both. A host's leader is its lowest rank; host h is rank h of a
// tree of hosts.
#include "src/collectives/fold.hpp"
#include "src/engine/host_map.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/announcement.hpp"
#include "src/gtopk/algorithms/doubling.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Steps;
using collectives::Tree;
using engine::HostMap;
using engine::Task;

/// An exchange in which hosts stand for their leaders.
class Leaders {
 public:
  Leaders(ListExchange& exchange, const HostMap& hosts, std::uint32_t first_step)
      : exchange_(exchange), hosts_(hosts), first_step_(first_step) {}

  Task<List> swap(std::uint32_t host, Steps steps, List mine, std::uint64_t hosts) {
    const Steps behind{.sent = first_step_ + steps.sent, .received = first_step_ + steps.received};
    return exchange_.swap(hosts_.leader(host), behind, mine, hosts);
  }
  Task<List> receive(std::uint32_t host, std::uint32_t step, std::uint64_t hosts) {
    return exchange_.receive(hosts_.leader(host), first_step_ + step, hosts);
  }
  Task<void> send(std::uint32_t host, std::uint32_t step, List list) {
    return exchange_.send(hosts_.leader(host), first_step_ + step, list);
  }
  List merge(const List& left, const List& right, std::uint32_t lowest_host) {
    return exchange_.merge(left, right, hosts_.leader(lowest_host));
  }

 private:
  ListExchange& exchange_;
  const HostMap& hosts_;
  std::uint32_t first_step_;
};

Task<List> by_hosts(ListExchange& exchange, List mine) {
  const HostMap& hosts = exchange.group().hosts();
  if (hosts.hosts() == hosts.ranks()) {
    Task<List> walking = walk_tree(exchange, mine, doubling<ListExchange>);
    const List result = co_await walking;
    co_return result;
  }
  Announcement announcement(exchange.group());
  Task<void> hearing = announcement.heard();
  co_await hearing;

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

  // The host: its lists are added in the order of their ranks; the last addition selects.
  const auto others = hosts.ranks_of(host).subspan(1);
  for (const std::uint32_t other : others) {
    Task<List> receiving = exchange.receive(other, up, 1);
    const List theirs = co_await receiving;
    mine =
        other == others.back() ? exchange.merge(mine, theirs, rank) : exchange.unite(mine, theirs);
  }

  // Between hosts.
  Leaders leaders(exchange, hosts, down + 1);
  const Tree tree(hosts.hosts());
  Task<List> walking = collectives::folded(leaders, tree, host, mine, doubling<Leaders>);
  mine = co_await walking;

  for (const std::uint32_t other : others) {
    Task<void> sending = exchange.send(other, down, mine);
    co_await sending;
  }
  co_return mine;
}

}  // namespace

const AlgorithmRow kHierarchical{
    .name = "hierarchical",
    .description = "the exact sum inside each host, then gTop-k between hosts",
    .walk = by_hosts,
    .keeps = Semantics::kGtopk};

}  // namespace gtopk::sparse
