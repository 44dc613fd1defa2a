// Sparse, algorithms: gTop-k by recursive doubling, and Top-k, which is the same walk without
// re-selection.
//
// Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification", arXiv
// 1901.04359, Alg. 3, made symmetric: every rank walks from its leaf to the root and merges what
// its partner has merged, so no broadcast follows. There are log2 p rounds, with one list of at
// most k entries each way; ranks beyond p fold in before and get the result afterwards.
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/doubling.hpp"

namespace gtopk::sparse {
namespace {

using engine::Task;

Task<List> recursive_doubling(ListExchange& exchange, List mine) {
  return walk_tree(exchange, mine, doubling<ListExchange>);
}

/// The cost of fold, L rounds and unfold, with k entries in each list.
void gtopk_cost(CriticalPath& path) {
  const std::uint64_t k = path.shape().k;
  const Routes& routes = path.routes();
  path.sweep(k);
  if (path.folds()) {
    path.node(k, routes.fold());
  }
  for (std::uint32_t round = 0; round < path.tree().rounds(); ++round) {
    path.node(k, routes.swap(round));
  }
  if (path.folds()) {
    path.list(k, Holds::kSelection, routes.fold());
  }
}

/// The cost of the same rounds, in which a list holds everything selected below its node, or its
/// sum.
void topk_cost(CriticalPath& path) {
  path.sweep(path.united(path.tree().ranks()));
  if (path.folds()) {
    path.list(path.united(1), Holds::kSelection, path.routes().fold());
    path.unite(2 * path.united(1));
  }
  const collectives::Tree& tree = path.tree();
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const Route route = path.routes().swap(round);
    round == 0 && !path.folds() ? path.list(path.united(1), Holds::kSelection, route)
                                : path.sum_or_selections(path.ranks_below(round), route);
    path.unite(path.united(path.ranks_below(round + 1)));
  }
  if (path.folds()) {
    path.sum_or_selections(tree.ranks(), path.routes().fold());
  }
}

}  // namespace

const AlgorithmRow kGtopk{.name = "gtopk",
                          .description = "gTop-k by recursive doubling: log2 P rounds of k entries",
                          .walk = recursive_doubling,
                          .cost = gtopk_cost,
                          .keeps = Semantics::kGtopk};

const AlgorithmRow kTopk{.name = "topk",
                         .description = "the union of all selections: up to P k entries",
                         .reselects = false,
                         .bounded = false,
                         .walk = recursive_doubling,
                         .forwards = true,
                         .cost = topk_cost,
                         .keeps = Semantics::kExactSum};

}  // namespace gtopk::sparse
