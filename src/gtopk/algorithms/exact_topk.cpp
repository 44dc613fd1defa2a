// Sparse, algorithms: `exact`: the exact top k of the sum of all selections, which gTop-k
// (arXiv 1901.04359) approximates.
//
// Recursive halving without re-selection leaves each leaf the exact sums of one region. The k-th
// largest key of all regions is then found digit by digit from histograms that the leaves add up;
// each leaf cuts its region there, and the regions are gathered. With blocks, a region consists of
// whole blocks, and its leaf cuts each of them separately. Sums have the same bits as in `topk`.
#include <algorithm>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/collectives/fold.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/leaf_sum.hpp"
#include "src/gtopk/algorithms/regions.hpp"
#include "src/gtopk/value/selection_order.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::Task;

constexpr std::uint32_t kDigitBits = 8;
constexpr std::uint64_t kDigits = 1U << kDigitBits;

/// The point at which regions are cut. The result takes all entries with a larger key, and `equals`
/// of this region's entries with this key.
struct Cut {
  std::uint64_t key = 0;
  std::uint64_t equals = 0;
};

/// For the nonzero entries whose key begins with `prefix`, counts how many have each value of the
/// next digit, `shift` bits above the key's end.
void count_digits(EntryType type, const List& list, std::uint64_t prefix, std::uint32_t shift,
                  std::span<std::uint64_t> counts) {
  std::ranges::fill(counts, 0);
  visit_entry(type, [&]<class Value, class Index>() {
    const Entries<Value, Index> entries = list.entries<Value, Index>();
    for (std::size_t i = 0; i < entries.size; ++i) {
      const std::uint64_t key = magnitude_key(entries.values[i]);
      const std::uint64_t digits = key >> shift;
      if (key != 0 && digits / kDigits == prefix) {
        ++counts[digits % kDigits];
      }
    }
  });
}

std::span<std::uint64_t> numbers(ListExchange& exchange) {
  std::byte* const memory = exchange.group().buffer(kDigits * sizeof(std::uint64_t)).data();
  return {reinterpret_cast<std::uint64_t*>(memory), kDigits};
}

/// Finds the k-th largest key over all leaves' lists. Among equal keys, lower regions come first.
/// The key is zero if there are fewer than k nonzero entries.
Task<Cut> find_cut(ListExchange& exchange, const Tree& tree, List mine, std::uint32_t first_step) {
  const EntryType type = exchange.plan().type;
  LeafSum counting(exchange.group(), tree, kDigits);
  const std::span<std::uint64_t> own = numbers(exchange);
  const std::span<std::uint64_t> below = numbers(exchange);
  std::uint64_t mine_equal = 0;
  std::uint64_t below_equal = 0;
  std::uint64_t key = 0;
  std::uint64_t wanted = exchange.plan().k;  // among the keys with the prefix `key`
  for (auto shift = static_cast<std::uint32_t>(8 * type.value_bytes()); shift > 0;) {
    shift -= kDigitBits;
    count_digits(type, mine, key, shift, counting.words());
    std::ranges::copy(counting.words(), own.begin());
    co_await counting.sum(first_step, below);
    first_step += tree.rounds();
    std::uint64_t digit = kDigits - 1;
    for (; digit > 0 && counting.words()[digit] < wanted; --digit) {
      wanted -= counting.words()[digit];
    }
    key = key * kDigits + digit;
    mine_equal = own[digit];
    below_equal = below[digit];
  }
  co_return Cut{key, std::min(mine_equal, wanted - std::min(wanted, below_equal))};
}

Task<List> exact_rounds(ListExchange& exchange, const Tree& tree, std::uint32_t /*rank*/,
                        List mine) {
  std::uint32_t step = Tree::round_step(0);
  Task<Regions> agreeing = agree_on_regions(exchange, tree, mine, tree.rounds(), step);
  const Regions regions = co_await agreeing;
  step += tree.rounds();
  RegionWalk walk(exchange, tree, regions);

  // Reduce-scatter: the exact sums of one region.
  for (std::uint32_t round = 0; round < tree.rounds(); ++round, ++step) {
    Task<List> halving = walk.halve(mine, round, step, 2ULL << round);
    mine = co_await halving;
  }

  if (exchange.plan().blocks) {  // a block lies entirely in one region
    mine = exchange.cut(mine);
  } else {
    Task<Cut> finding = find_cut(exchange, tree, mine, step);
    const Cut cut = co_await finding;
    step += tree.rounds() * static_cast<std::uint32_t>(exchange.plan().type.value_bytes());
    mine = exchange.cut(mine, cut.key, cut.equals);
  }
  if (mine.size > exchange.plan().k) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("leaves disagree: {} entries of one region are among the first {}",
                            mine.size, exchange.plan().k));
  }

  // Gather.
  for (std::uint32_t round = tree.rounds(); round-- > 0; ++step) {
    Task<List> joining = walk.join(mine, round, step);
    mine = co_await joining;
  }
  co_return mine;
}

Task<List> exact(ListExchange& exchange, List mine) {
  return walk_tree(exchange, mine, exact_rounds);
}

/// The cost, which assumes balanced regions and disjoint selections.
void exact_cost(CriticalPath& path) {
  const std::uint64_t k = path.shape().k;
  const Tree& tree = path.tree();
  path.sweep(k);
  if (path.folds()) {
    path.list(k, Holds::kSelection, path.routes().fold());
    path.unite(2 * k);
  }
  const auto words = [&](std::uint64_t count) {
    for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
      path.message(sizeof(std::uint64_t) * count, path.routes().swap(round));
    }
  };
  words(tree.leaves() - 1);  // the cuts
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    // Before the round, a leaf has the union of 2^round parts.
    const std::uint64_t sent = path.united(path.ranks_below(round)) >> (round + 1);
    path.copy(sent);
    path.list(sent, round == 0 && !path.folds() ? Holds::kPart : Holds::kSums,
              path.routes().swap(round));
    path.unite(2 * sent);
  }
  const std::uint64_t region = path.united(tree.ranks()) >> tree.rounds();
  const std::uint64_t kept = std::min(region, k >> tree.rounds());
  if (path.shape().per_block) {
    path.merge(region, kept);  // selects from one list as from a sum
  } else {
    for (std::size_t digit = 0; digit < path.shape().type.value_bytes(); ++digit) {
      path.add(region);
      words(kDigits);
    }
    path.unite(region);  // the cut
    path.drop(region - kept);
  }
  for (std::uint32_t round = tree.rounds(); round-- > 0;) {
    path.list(k >> (round + 1), Holds::kSums, path.routes().swap(round));
    path.copy(2 * (k >> (round + 1)));
  }
  if (path.folds()) {
    path.list(k, Holds::kSums, path.routes().fold());
  }
}

}  // namespace

const AlgorithmRow kExactTopk{.name = "exact",
                              .description = "the exact top k of the sum of all selections",
                              .reselects = false,
                              .walk = exact,
                              .cost = exact_cost,
                              .keeps = Semantics::kExactSum};

}  // namespace gtopk::sparse
