// Sparse, algorithms room: gTop-k by a binomial tree and a broadcast, as the paper's own code does
// it (arXiv 1901.04359, Alg. 3): a longer critical path (2 log2 P) and far less traffic in all, for
// oversubscribed switches. Same tree, same bits as gtopk.cpp.
#include "src/collectives/fold.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::Task;

Task<List> up_and_down(ListExchange& exchange, const Tree& tree, std::uint32_t rank, List mine) {
  // Up: in round t the leaves with t trailing zero bits are left; the odd one of each pair hands
  // over and waits for the result.
  std::uint32_t round = 0;
  for (; round < tree.rounds() && tree.on_left(rank, round); ++round) {
    Task<List> receiving =
        exchange.receive(tree.partner(rank, round), Tree::round_step(round), 2ULL << round);
    const List theirs = co_await receiving;
    mine = exchange.merge(mine, theirs, rank);
  }
  if (round < tree.rounds()) {
    Task<List> handing_over =
        exchange.swap(tree.partner(rank, round), {Tree::round_step(round), tree.down_step(round)},
                      mine, tree.ranks());
    mine = co_await handing_over;
  }

  // Down: whoever it took a list from gets the result, the largest subtree first and the next when
  // that has left: it has the longest way to go.
  while (round > 0) {
    --round;
    Task<void> sending = exchange.send(tree.partner(rank, round), tree.down_step(round), mine);
    co_await sending;
  }
  co_return mine;
}

Task<List> binomial_tree(ListExchange& exchange, List mine) {
  return walk_tree(exchange, mine, up_and_down);
}

/// Up and down: 2 L lists of k entries, and those of fold and unfold.
void cost(CriticalPath& path) {
  const std::uint64_t k = path.shape().k;
  path.sweep();
  const std::uint32_t nodes = path.tree().rounds() + (path.folds() ? 1 : 0);
  for (std::uint32_t node = 0; node < nodes; ++node) {
    path.list(k, Holds::kSelection);
    path.merge(2 * k);
    path.list(k, Holds::kSelection);  // on the way down
  }
}

}  // namespace

const AlgorithmRow kGtopkTree{
    .name = "gtopk-tree",
    .description =
        "gTop-k by a binomial tree and a broadcast: less traffic in all, twice the steps",
    .walk = binomial_tree,
    .cost = cost,
    .keeps = Semantics::kGtopk};

}  // namespace gtopk::sparse
