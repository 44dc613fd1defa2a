// Sparse, algorithms room: gTop-k by a binomial tree and a broadcast, as the paper's own code does
// it: a longer critical path (2 log2 P) and far less traffic in all, for oversubscribed switches.
// Same tree, same bits as gtopk.hpp.
#pragma once

#include "collectives/tree.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"
#include "gtopk/algorithms/departure.hpp"
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
    Departure outgoing = exchange.send(fold_partner, collectives::Tree::fold_step(), mine);
    const std::size_t received = co_await incoming;
    exchange.open(result, received, fold_partner, tree.unfold_step());
    engine::Task<void> leaving = outgoing.over();
    co_await leaving;
    co_return result;
  }
  if (tree.folds(rank)) {
    List theirs = exchange.room_for(1);
    engine::Message incoming =
        group.recv(fold_partner, collectives::Tree::fold_step(), theirs.storage());
    const std::size_t received = co_await incoming;
    exchange.open(theirs, received, fold_partner, collectives::Tree::fold_step());
    mine = exchange.merge_node(mine, theirs, true);
  }

  // Up: in round t the leaves with t trailing zero bits are left; the odd one of each pair hands
  // over and waits.
  std::uint32_t round = 0;
  for (; round < tree.rounds() && tree.on_left(rank, round); ++round) {
    const std::uint32_t partner = tree.partner(rank, round);
    const std::uint32_t step = collectives::Tree::round_step(round);
    List theirs = exchange.room_for(1);
    engine::Message incoming = group.recv(partner, step, theirs.storage());
    const std::size_t received = co_await incoming;
    exchange.open(theirs, received, partner, step);
    mine = exchange.merge_node(mine, theirs, true);
  }
  if (leaf != 0) {
    const std::uint32_t partner = tree.partner(rank, round);
    List result = exchange.room_for(1);
    engine::Message incoming = group.recv(partner, tree.down_step(round), result.storage());
    Departure outgoing = exchange.send(partner, collectives::Tree::round_step(round), mine);
    const std::size_t received = co_await incoming;
    exchange.open(result, received, partner, tree.down_step(round));
    engine::Task<void> leaving = outgoing.over();
    co_await leaving;
    mine = result;
  }

  // Down: whoever it took a list from gets the result, the largest subtree first and the next when
  // that has left: it has the longest way to go.
  while (round > 0) {
    --round;
    Departure outgoing = exchange.send(tree.partner(rank, round), tree.down_step(round), mine);
    engine::Task<void> leaving = outgoing.over();
    co_await leaving;
  }
  if (tree.folds(rank)) {
    Departure outgoing = exchange.send(fold_partner, tree.unfold_step(), mine);
    engine::Task<void> leaving = outgoing.over();
    co_await leaving;
  }
  co_return mine;
}

}  // namespace gtopk::sparse
