// Sparse, algorithms: `rs-ag`, which reduces and re-selects regions and then gathers them: O(k) on
// the wire for any P.
//
// It belongs to the family of Ok-Topk (Li and Hoefler, PPoPP 2022: regions balanced by the
// positions of the ranks' entries) and SparDL (Zhao et al., ICDE 2024, arXiv 2304.00737: every
// merge re-selects, and what it drops stays with the rank that merged). Unlike both, it uses
// recursive halving along the tree, exact re-selection, and ties by index.
#include <algorithm>
#include <bit>

#include "src/collectives/fold.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/regions.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::Task;

/// The number of rounds that split. A region has at least one entry; with fewer than p entries, the
/// last rounds merge as in gtopk.
std::uint32_t splits_for(std::uint64_t k, const Tree& tree) {
  return std::min(tree.rounds(), k == 0 ? 0 : static_cast<std::uint32_t>(std::bit_width(k)) - 1);
}

Task<List> rs_ag_rounds(ListExchange& exchange, const Tree& tree, std::uint32_t rank, List mine) {
  const std::uint32_t splits = splits_for(exchange.plan().k, tree);
  std::uint32_t step = Tree::round_step(0);
  Task<Regions> agreeing = agree_on_regions(exchange, tree, mine, splits, step);
  const Regions regions = co_await agreeing;
  step += tree.rounds();
  RegionWalk walk(exchange, tree, regions);

  // Reduce-scatter: after round t a node's range is half as wide, and it keeps as many entries as
  // its regions may hold.
  std::uint32_t round = 0;
  for (; round < splits; ++round, ++step) {
    Task<List> halving = walk.halve(mine, round, step, 1);
    mine = co_await halving;
  }
  for (; round < tree.rounds(); ++round, ++step) {
    Task<List> swapping = exchange.swap(tree.partner(rank, round), {step, step}, mine, 1);
    const List theirs = co_await swapping;
    // These are the leaves of this node with the same region, lowest first.
    const std::uint32_t region_bits = (1U << splits) - 1;
    const std::uint32_t lowest =
        ((tree.leaf(rank) >> (round + 1)) << (round + 1)) | (tree.leaf(rank) & region_bits);
    mine = exchange.merge(mine, theirs, tree.rank_of(lowest), regions.entries(walk.range()));
  }

  // Gather.
  for (round = splits; round-- > 0; ++step) {
    Task<List> joining = walk.join(mine, round, step);
    mine = co_await joining;
  }
  co_return mine;
}

Task<List> reduced_by_regions(ListExchange& exchange, List mine) {
  return walk_tree(exchange, mine, rs_ag_rounds);
}

/// The cost, assuming balanced regions: a leaf sends half of what it has, and later gathers it.
void rs_ag_cost(CriticalPath& path) {
  const std::uint64_t k = path.shape().k;
  const Tree& tree = path.tree();
  const std::uint32_t splits = splits_for(k, tree);
  path.sweep(k);
  if (path.folds()) {
    path.node(k, path.routes().fold());
  }
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    // Ranks agree on the cuts.
    path.message(sizeof(std::uint64_t) * ((1ULL << splits) - 1), path.routes().swap(round));
  }
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const bool halves = round < splits;
    const std::uint64_t sent = k >> (halves ? round + 1 : splits);
    path.copy(halves ? sent : 0);
    path.list(sent, halves ? Holds::kPart : Holds::kSelection, path.routes().swap(round));
    path.merge(2 * sent, sent);
  }
  for (std::uint32_t round = splits; round-- > 0;) {
    path.list(k >> (round + 1), Holds::kPart, path.routes().swap(round));
    path.copy(2 * (k >> (round + 1)));
  }
  if (path.folds()) {
    path.list(k, splits > 0 ? Holds::kPart : Holds::kSelection, path.routes().fold());
  }
}

}  // namespace

const AlgorithmRow kRsAg{
    .name = "rs-ag",
    .description = "regions reduced and re-selected, then gathered: O(k) on the wire for any P",
    .walk = reduced_by_regions,
    .cost = rs_ag_cost};

}  // namespace gtopk::sparse
