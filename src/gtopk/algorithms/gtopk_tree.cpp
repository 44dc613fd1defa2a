// Sparse, algorithms: gTop-k by a binomial tree and a broadcast, as in the paper's own code (arXiv
// 1901.04359, Alg. 3): a longer critical path (2 log2 P) and far less total traffic, for
// oversubscribed switches. It uses the same tree and gives the same bits as gtopk.cpp.
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/binomial.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::Task;

Task<List> as_it_is(List root) { co_return root; }

Task<List> binomial_tree(ListExchange& exchange, List mine) {
  const auto walk = [](ListExchange& among, const Tree& tree, std::uint32_t rank, List list) {
    return up_and_down(among, tree, rank, list, as_it_is);
  };
  return walk_tree(exchange, mine, walk);
}

/// The cost of going up and down: 2 L lists of k entries, plus the lists of fold and unfold.
void tree_cost(CriticalPath& path) {
  const std::uint64_t k = path.shape().k;
  const auto there_and_back = [&](Route route) {
    path.node(k, route);
    path.list(k, Holds::kSelection, route);  // on the way down
  };
  path.sweep(k);
  if (path.folds()) {
    there_and_back(path.routes().fold());
  }
  for (std::uint32_t round = 0; round < path.tree().rounds(); ++round) {
    there_and_back(path.routes().hand_over(round));
  }
}

}  // namespace

const AlgorithmRow kGtopkTree{
    .name = "gtopk-tree",
    .description = "gTop-k by a binomial tree and a broadcast: less total traffic, twice the steps",
    .walk = binomial_tree,
    .cost = tree_cost,
    .keeps = Semantics::kGtopk};

}  // namespace gtopk::sparse
