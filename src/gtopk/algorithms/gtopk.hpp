// Sparse, algorithms room: gTop-k by recursive doubling (and Top-k, which is the same walk without
// re-selection).
//
// Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification", arXiv
// 1901.04359, Alg. 3, made symmetric: every rank walks from its leaf to the root and merges what
// its partner has merged, so no broadcast follows. log2 p rounds, one list of at most k entries
// each way; ranks beyond p fold in before and get the result after.
#pragma once

#include "collectives/tree.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"
#include "gtopk/algorithms/departure.hpp"
#include "gtopk/algorithms/exchange.hpp"

namespace gtopk::sparse {

/// From this rank's selection to the result, the same bits on every rank.
template <class Value, class Index>
engine::Task<ListMessage<Value, Index>> gtopk(Exchange<Value, Index>& exchange,
                                              ListMessage<Value, Index> mine) {
  using List = ListMessage<Value, Index>;
  engine::GroupView& group = exchange.group();
  const collectives::Tree tree(group.size());
  const std::uint32_t rank = group.rank();
  const std::uint32_t fold_partner = collectives::Tree::fold_partner(rank);

  if (tree.folded_away(rank)) {
    List result = exchange.room_for(group.size());
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
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const std::uint32_t partner = tree.partner(rank, round);
    const std::uint32_t step = collectives::Tree::round_step(round);
    List theirs = exchange.room_for(std::uint64_t{2} << round);
    engine::Message incoming = group.recv(partner, step, theirs.storage());
    Departure outgoing = exchange.send(partner, step, mine);
    const std::size_t received = co_await incoming;
    exchange.open(theirs, received, partner, step);
    mine = exchange.merge_node(mine, theirs, rank == tree.lowest_rank(rank, round));
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
