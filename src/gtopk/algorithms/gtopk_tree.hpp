// Sparse, algorithms room: gTop-k by a binomial tree and a broadcast, as the paper's own code does
// it: a longer critical path (2 log2 P) and far less traffic in all, for oversubscribed switches.
// Same tree, same bits as gtopk.hpp.
#pragma once

#include "collectives/tree.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"
#include "gtopk/algorithms/exchange.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
engine::Task<ListMessage<Value, Index>> gtopk_tree(Exchange<Value, Index>& exchange,
                                                   ListMessage<Value, Index> mine) {
  using List = ListMessage<Value, Index>;
  engine::GroupView& group = exchange.group();
  const collectives::Tree tree(group.size());
  const std::uint32_t rank = group.rank();
  const std::uint32_t leaf = tree.leaf(rank);
  const std::uint32_t fold_partner = collectives::Tree::fold_partner(rank);

  if (tree.folded_away(rank)) {
    List result = exchange.room_for(1);
    engine::Message incoming = group.recv(fold_partner, tree.unfold_step(), result.storage());
    engine::Message outgoing =
        group.send(fold_partner, collectives::Tree::fold_step(), mine.bytes());
    const std::size_t received = co_await incoming;
    exchange.open(result, received, fold_partner);
    co_return result;
  }
  if (tree.folds(rank)) {
    List theirs = exchange.room_for(1);
    engine::Message incoming =
        group.recv(fold_partner, collectives::Tree::fold_step(), theirs.storage());
    const std::size_t received = co_await incoming;
    exchange.open(theirs, received, fold_partner);
    mine = exchange.merge_node(mine, theirs, true);
  }

  // Up: in round t the leaves with t trailing zero bits are left; the odd one of each pair hands
  // over and waits.
  std::uint32_t round = 0;
  for (; round < tree.rounds() && tree.on_left(rank, round); ++round) {
    const std::uint32_t partner = tree.partner(rank, round);
    List theirs = exchange.room_for(1);
    engine::Message incoming =
        group.recv(partner, collectives::Tree::round_step(round), theirs.storage());
    const std::size_t received = co_await incoming;
    exchange.open(theirs, received, partner);
    mine = exchange.merge_node(mine, theirs, true);
  }
  if (leaf != 0) {
    const std::uint32_t partner = tree.partner(rank, round);
    List result = exchange.room_for(1);
    engine::Message incoming = group.recv(partner, tree.down_step(round), result.storage());
    engine::Message outgoing =
        group.send(partner, collectives::Tree::round_step(round), mine.bytes());
    const std::size_t received = co_await incoming;
    exchange.open(result, received, partner);
    mine = result;
  }

  // Down: whoever it took a list from gets the result, the largest subtree first.
  while (round > 0) {
    --round;
    engine::Message outgoing =
        group.send(tree.partner(rank, round), tree.down_step(round), mine.bytes());
  }
  if (tree.folds(rank)) {
    engine::Message outgoing = group.send(fold_partner, tree.unfold_step(), mine.bytes());
  }
  co_return mine;
}

}  // namespace gtopk::sparse
