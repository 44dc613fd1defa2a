// Collectives: walks along the tree are written for its leaves; this header makes them work for any
// number of ranks. Of two ranks that share a leaf, one sends its item to the other before the walk
// and gets the result after it; the other represents both.
#pragma once

#include <cstdint>

#include "src/collectives/tree.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// The steps of the two messages of a swap.
struct Steps {
  std::uint32_t sent;
  std::uint32_t received;
};

/// An Exchange says what is sent and how two items are merged.
///   Task<Item> swap(partner, steps, mine, ranks)  sends mine, returns the item for `ranks` ranks
///   Task<Item> receive(from, step, ranks)
///   Task<void> send(to, step, item)
///   Item merge(left, right, speaker)              speaker: the lowest rank of the node above both
/// A Walk is Task<Item> operator()(exchange, tree, rank, mine), for one rank of each leaf.
template <class Exchange, class Item, class Walk>
engine::Task<Item> folded(Exchange& exchange, const Tree& tree, std::uint32_t rank, Item mine,
                          Walk walk) {
  const std::uint32_t partner = Tree::fold_partner(rank);
  if (tree.folded_away(rank)) {
    engine::Task<Item> handing_over =
        exchange.swap(partner, {Tree::fold_step(), tree.unfold_step()}, mine, tree.ranks());
    Item result = co_await handing_over;
    co_return result;
  }
  if (tree.folds(rank)) {
    engine::Task<Item> receiving = exchange.receive(partner, Tree::fold_step(), 1);
    const Item theirs = co_await receiving;
    mine = exchange.merge(mine, theirs, rank);
  }
  engine::Task<Item> walking = walk(exchange, tree, rank, mine);
  mine = co_await walking;
  if (tree.folds(rank)) {
    co_await exchange.send(partner, tree.unfold_step(), mine);
  }
  co_return mine;
}

}  // namespace gtopk::collectives
