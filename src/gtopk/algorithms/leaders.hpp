// Sparse, algorithms: walks along trees that do not consist of the group's ranks in order, but of
// its hosts, represented by their leaders, or of the ranks of one host.
#pragma once

#include <cstdint>

#include "src/collectives/fold.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/host_map.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/doubling.hpp"
#include "src/gtopk/algorithms/list_exchange.hpp"

namespace gtopk::sparse {

/// An exchange in which numbers stand for ranks; RankOf maps a number to a rank. Its steps begin at
/// `first_step`.
template <class RankOf>
class Numbered {
 public:
  Numbered(ListExchange& exchange, RankOf rank_of, std::uint32_t first_step)
      : exchange_(exchange), rank_of_(rank_of), first_step_(first_step) {}

  engine::Task<List> swap(std::uint32_t partner, collectives::Steps steps, List mine,
                          std::uint64_t ranks) {
    const collectives::Steps behind{.sent = first_step_ + steps.sent,
                                    .received = first_step_ + steps.received};
    return exchange_.swap(rank_of_(partner), behind, mine, ranks);
  }
  engine::Task<List> receive(std::uint32_t from, std::uint32_t step, std::uint64_t ranks) {
    return exchange_.receive(rank_of_(from), first_step_ + step, ranks);
  }
  engine::Task<void> send(std::uint32_t to, std::uint32_t step, List list) {
    return exchange_.send(rank_of_(to), first_step_ + step, list);
  }
  List merge(const List& left, const List& right, std::uint32_t lowest) {
    return exchange_.merge(left, right, rank_of_(lowest));
  }

 private:
  ListExchange& exchange_;
  RankOf rank_of_;
  std::uint32_t first_step_;
};

/// Runs gTop-k of the hosts' lists between hosts; called by leaders.
inline engine::Task<List> between_hosts(ListExchange& exchange, std::uint32_t first_step,
                                        List mine) {
  const engine::HostMap& hosts = exchange.group().hosts();
  const auto leader = [&hosts](std::uint32_t host) { return hosts.leader(host); };
  Numbered leaders(exchange, leader, first_step);
  const collectives::Tree tree(hosts.hosts());
  const std::uint32_t host = hosts.host_of(exchange.group().rank());
  engine::Task<List> walking =
      collectives::folded(leaders, tree, host, mine, doubling<decltype(leaders)>);
  mine = co_await walking;
  co_return mine;
}

}  // namespace gtopk::sparse
