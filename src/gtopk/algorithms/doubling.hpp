// Sparse, algorithms: recursive doubling between the leaves of a tree: every leaf walks to the
// root and merges what its partner has merged, so that no broadcast follows.
#pragma once

#include <cstdint>

#include "src/collectives/tree.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/value/list.hpp"

namespace gtopk::sparse {

/// The walk of one rank of each leaf, for collectives::folded(). An Exchange is defined there.
template <class Exchange>
engine::Task<List> doubling(Exchange& exchange, const collectives::Tree& tree, std::uint32_t rank,
                            List mine) {
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const std::uint32_t partner = tree.partner(rank, round);
    const std::uint32_t step = collectives::Tree::round_step(round);
    engine::Task<List> swapping = exchange.swap(partner, {step, step}, mine, 2ULL << round);
    const List theirs = co_await swapping;
    const std::uint32_t lowest = tree.lowest_rank(rank, round);
    // Lists may be forwarded, in the order of the ranks.
    mine = tree.on_left(rank, round) ? exchange.merge(mine, theirs, lowest)
                                     : exchange.merge(theirs, mine, lowest);
  }
  co_return mine;
}

}  // namespace gtopk::sparse
