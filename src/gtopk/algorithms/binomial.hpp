// Sparse, algorithms: a reduction up a binomial tree to its first leaf, and the result back
// down.
#pragma once

#include <cstdint>

#include "src/collectives/tree.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/value/list.hpp"

namespace gtopk::sparse {

/// The walk of one rank of each leaf, for collectives::folded(). An Exchange is defined there.
/// `at_the_top` is a Task<List>(List) that the first leaf applies to the root's list before sending
/// it down.
template <class Exchange, class AtTheTop>
engine::Task<List> up_and_down(Exchange& exchange, const collectives::Tree& tree,
                               std::uint32_t rank, List mine, AtTheTop at_the_top) {
  using collectives::Tree;
  // Up: in round t the leaves with t trailing zero bits remain; the odd one of each pair sends its
  // list and waits for the result.
  std::uint32_t round = 0;
  for (; round < tree.rounds() && tree.on_left(rank, round); ++round) {
    engine::Task<List> receiving =
        exchange.receive(tree.partner(rank, round), Tree::round_step(round), 2ULL << round);
    const List theirs = co_await receiving;
    mine = exchange.merge(mine, theirs, rank);
  }
  if (round < tree.rounds()) {
    engine::Task<List> handing_over =
        exchange.swap(tree.partner(rank, round), {Tree::round_step(round), tree.down_step(round)},
                      mine, tree.ranks());
    mine = co_await handing_over;
  } else {
    engine::Task<List> going_on = at_the_top(mine);
    mine = co_await going_on;
  }

  // Down: send to each child, largest subtree first because it has the longest way to go, after the
  // previous send drains.
  while (round > 0) {
    --round;
    co_await exchange.send(tree.partner(rank, round), tree.down_step(round), mine);
  }
  co_return mine;
}

}  // namespace gtopk::sparse
