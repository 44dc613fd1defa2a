// Test support: the reference, top to bottom in the order of docs/algorithms.md.
#include "support/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace gtopk::reference {
namespace {

template <class Value>
using Entries = std::map<std::uint64_t, Value>;

/// acc = gradient + residual: one addition in Value. The gradient is exact in Value.
template <class Value>
std::vector<Value> accumulate(const Problem& problem, const Input& input) {
  const DataType acc_type = accumulation_type(problem.type);
  std::vector<Value> acc(problem.d);
  for (std::uint64_t i = 0; i < problem.d; ++i) {
    const auto gradient = static_cast<Value>(load(problem.type, input.gradient, i));
    const auto residual =
        input.residual ? static_cast<Value>(load(acc_type, *input.residual, i)) : Value{0};
    acc[i] = gradient + residual;
  }
  return acc;
}

/// |value| descending, then index ascending.
template <class Value>
bool comes_before(const std::pair<std::uint64_t, Value>& left,
                  const std::pair<std::uint64_t, Value>& right) {
  if (std::fabs(left.second) != std::fabs(right.second)) {
    return std::fabs(left.second) > std::fabs(right.second);
  }
  return left.first < right.first;
}

/// The entries in the selection order. Zeros are not entries.
template <class Value>
std::vector<std::pair<std::uint64_t, Value>> in_order(const Entries<Value>& entries) {
  std::vector<std::pair<std::uint64_t, Value>> sorted;
  for (const auto& [index, value] : entries) {
    if (value != Value{0}) sorted.emplace_back(index, value);
  }
  std::sort(sorted.begin(), sorted.end(), comes_before<Value>);
  return sorted;
}

/// S_r: the first k of acc.
template <class Value>
Entries<Value> select(const std::vector<Value>& acc, std::uint64_t k) {
  Entries<Value> all;
  for (std::uint64_t i = 0; i < acc.size(); ++i) all[i] = acc[i];
  Entries<Value> selection;
  for (const auto& [index, value] : in_order(all)) {
    if (selection.size() == k) break;
    selection[index] = value;
  }
  return selection;
}

/// The sums of two lists; an index of one of them keeps its value.
template <class Value>
Entries<Value> united(const Entries<Value>& left, const Entries<Value>& right) {
  Entries<Value> sums = left;
  for (const auto& [index, value] : right) {
    const auto [place, is_new] = sums.emplace(index, value);
    if (!is_new) place->second = place->second + value;
  }
  return sums;
}

template <class Value>
bool all_finite(const Entries<Value>& entries) {
  return std::all_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return std::isfinite(entry.second); });
}

/// What a node of the tree dropped, and the rank that keeps it.
template <class Value>
struct Dropped {
  std::uint32_t rank = 0;
  std::uint64_t index = 0;
  Value value = 0;
};

/// A subtree: the ranks in it are those of `leaves` consecutive leaves, from `leaf` on.
template <class Value>
struct Subtree {
  std::uint32_t lowest_rank = 0;
  Entries<Value> entries;
};

template <class Value>
struct TreeResult {
  Entries<Value> root;
  std::vector<Dropped<Value>> dropped;  ///< leaf to root
  std::vector<Lists> lists;
  bool finite = true;
};

/// The shape of the tree, from P alone.
struct Shape {
  explicit Shape(std::uint32_t ranks) : leaves(1) {
    while (2 * leaves <= ranks) leaves *= 2;
    folded = ranks - leaves;
  }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t leaf) const {
    return leaf < folded ? 2 * leaf : leaf + folded;
  }
  std::uint32_t leaves;  ///< p
  std::uint32_t folded;  ///< r: ranks 2j and 2j + 1, j < r, share leaf j
};

/// Who sends the list of which size to whom, next to the arithmetic.
void count(std::vector<Lists>& lists, std::uint32_t from, std::uint32_t to, std::uint64_t entries) {
  lists[from].sent.push_back(entries);
  lists[to].received.push_back(entries);
}

/// gTop-k and topk: the lists go up the tree; topk drops nothing.
template <class Value>
TreeResult<Value> walk(const std::vector<Entries<Value>>& selections,
                       const SparseOptions& options) {
  const auto ranks = static_cast<std::uint32_t>(selections.size());
  const Shape shape(ranks);
  const bool reselects = options.algorithm != Algorithm::kTopk;
  const bool doubling = options.algorithm != Algorithm::kGtopkTree;
  TreeResult<Value> result;
  result.lists.resize(ranks);

  const auto merge = [&](const Subtree<Value>& left, const Subtree<Value>& right) {
    Subtree<Value> node{left.lowest_rank, united(left.entries, right.entries)};
    result.finite = result.finite && all_finite(node.entries);
    if (!result.finite || !reselects) return node;
    const auto sorted = in_order(node.entries);
    node.entries.clear();
    for (std::size_t place = 0; place < sorted.size(); ++place) {
      const auto& [index, value] = sorted[place];
      if (place < options.k) {
        node.entries[index] = value;
      } else {
        result.dropped.push_back({node.lowest_rank, index, value});
      }
    }
    return node;
  };

  std::vector<Subtree<Value>> subtrees;
  for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
    const std::uint32_t rank = shape.rank_of(leaf);
    subtrees.push_back({rank, selections[rank]});
    if (leaf >= shape.folded) continue;
    count(result.lists, rank + 1, rank, selections[rank + 1].size());
    subtrees.back() = merge(subtrees.back(), {rank + 1, selections[rank + 1]});
  }
  for (std::uint32_t width = 1; width < shape.leaves; width *= 2) {
    std::vector<Subtree<Value>> wider;
    for (std::uint32_t at = 0; at < subtrees.size(); at += 2) {
      const Subtree<Value>& left = subtrees[at];
      const Subtree<Value>& right = subtrees[at + 1];
      for (std::uint32_t i = 0; i < (doubling ? width : 1); ++i) {
        const std::uint32_t low = shape.rank_of(at * width + i);
        const std::uint32_t high = shape.rank_of((at + 1) * width + i);
        if (doubling) count(result.lists, low, high, left.entries.size());
        count(result.lists, high, low, right.entries.size());
      }
      wider.push_back(merge(left, right));
    }
    subtrees = std::move(wider);
  }
  result.root = subtrees.front().entries;
  if (!doubling) {
    for (std::uint32_t width = shape.leaves / 2; width >= 1; width /= 2) {
      for (std::uint32_t leaf = 0; leaf < shape.leaves; leaf += 2 * width) {
        count(result.lists, shape.rank_of(leaf), shape.rank_of(leaf + width), result.root.size());
      }
    }
  }
  for (std::uint32_t leaf = 0; leaf < shape.folded; ++leaf) {
    count(result.lists, 2 * leaf, 2 * leaf + 1, result.root.size());
  }
  return result;
}

/// What stays with one rank: acc, without what was delivered or sent, and with what nodes dropped.
template <class Value>
void put_back(std::vector<Value>& acc, std::uint32_t rank, const Entries<Value>& selection,
              const TreeResult<Value>& tree, const SparseOptions& options) {
  const bool own = options.put_back == PutBack::kOwn;
  for (const auto& [index, value] : selection) {
    if (!own || options.algorithm == Algorithm::kTopk || tree.root.contains(index)) {
      acc[index] = Value{0};
    }
  }
  for (const Dropped<Value>& dropped : tree.dropped) {
    if (dropped.rank != rank) continue;
    if (!own || tree.root.contains(dropped.index)) acc[dropped.index] += dropped.value;
  }
}

/// The sum of element i over all ranks, in the order that dense defines.
template <class Value>
Value dense_sum(const std::vector<std::vector<Value>>& accs, std::uint64_t i, std::uint64_t d) {
  const auto ranks = static_cast<std::uint32_t>(accs.size());
  if (d * sizeof(Value) <= kDenseTreeBytes) {
    const Shape shape(ranks);
    std::vector<Value> sums;
    for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
      const std::uint32_t rank = shape.rank_of(leaf);
      sums.push_back(leaf < shape.folded ? accs[rank][i] + accs[rank + 1][i] : accs[rank][i]);
    }
    while (sums.size() > 1) {
      for (std::size_t pair = 0; pair < sums.size() / 2; ++pair) {
        sums[pair] = sums[2 * pair] + sums[2 * pair + 1];
      }
      sums.resize(sums.size() / 2);
    }
    return sums.front();
  }
  // floor(c d / P) without an intermediate product that could overflow.
  const auto begin_of = [&](std::uint64_t chunk) {
    return chunk * (d / ranks) + chunk * (d % ranks) / ranks;
  };
  std::uint32_t chunk = 0;
  while (i >= begin_of(chunk + 1)) ++chunk;
  Value sum = accs[(chunk + 1) % ranks][i];
  for (std::uint32_t step = 2; step <= ranks; ++step) sum += accs[(chunk + step) % ranks][i];
  return sum;
}

/// T(value / divisor) on F; whether all of that is finite.
template <class Value>
bool write(const Problem& problem, const Entries<Value>& sums, Bytes& tensor) {
  const auto ranks = static_cast<Value>(problem.ranks.size());
  bool finite = true;
  for (const auto& [index, sum] : sums) {
    const Value value = problem.options.op == ReduceOp::kAvg ? sum / ranks : sum;
    store(problem.type, tensor, index, value);
    finite = finite && std::isfinite(load(problem.type, tensor, index));
  }
  return finite;
}

Outcome nothing_happened(const Problem& problem) {
  Outcome outcome;
  outcome.happened = false;
  outcome.tensor = zeros(problem.type, problem.d);
  for (std::uint64_t i = 0; i < problem.d; ++i) {
    store(problem.type, outcome.tensor, i, std::numeric_limits<double>::quiet_NaN());
  }
  for (const Input& input : problem.ranks) outcome.residuals.push_back(input.residual);
  return outcome;
}

template <class Value>
Bytes as_bytes(DataType type, const std::vector<Value>& values) {
  Bytes bytes = zeros(type, values.size());
  for (std::uint64_t i = 0; i < values.size(); ++i) store(type, bytes, i, values[i]);
  return bytes;
}

template <class Value>
Outcome reduce(const Problem& problem) {
  const DataType acc_type = accumulation_type(problem.type);
  std::vector<std::vector<Value>> accs;
  for (const Input& input : problem.ranks) {
    accs.push_back(accumulate<Value>(problem, input));
    const bool finite = std::all_of(accs.back().begin(), accs.back().end(),
                                    [](Value value) { return std::isfinite(value); });
    if (!finite) return nothing_happened(problem);
  }

  Outcome outcome;
  Entries<Value> sums;
  if (problem.options.algorithm == Algorithm::kDense) {
    for (std::uint64_t i = 0; i < problem.d; ++i) sums[i] = dense_sum(accs, i, problem.d);
    if (!all_finite(sums)) return nothing_happened(problem);
    for (std::vector<Value>& acc : accs) acc.assign(acc.size(), Value{0});
    outcome.lists.resize(accs.size());
    outcome.selected.resize(accs.size());
  } else {
    std::vector<Entries<Value>> selections;
    selections.reserve(accs.size());
    for (const auto& acc : accs) selections.push_back(select(acc, problem.options.k));
    const TreeResult<Value> tree = walk(selections, problem.options);
    if (!tree.finite) return nothing_happened(problem);
    sums = tree.root;
    outcome.lists = tree.lists;
    for (std::uint32_t rank = 0; rank < accs.size(); ++rank) {
      outcome.selected.push_back(selections[rank].size());
      put_back(accs[rank], rank, selections[rank], tree, problem.options);
    }
  }

  outcome.tensor = zeros(problem.type, problem.d);
  if (!write(problem, sums, outcome.tensor)) return nothing_happened(problem);
  outcome.delivered.insert(sums.begin(), sums.end());
  for (std::size_t rank = 0; rank < accs.size(); ++rank) {
    outcome.residuals.emplace_back();
    if (problem.ranks[rank].residual) outcome.residuals.back() = as_bytes(acc_type, accs[rank]);
  }
  return outcome;
}

}  // namespace

Outcome all_reduce(const Problem& problem) {
  return accumulation_type(problem.type) == DataType::kFloat64 ? reduce<double>(problem)
                                                               : reduce<float>(problem);
}

Bytes accumulated(const Problem& problem, std::uint32_t rank) {
  const DataType type = accumulation_type(problem.type);
  return type == DataType::kFloat64
             ? as_bytes(type, accumulate<double>(problem, problem.ranks[rank]))
             : as_bytes(type, accumulate<float>(problem, problem.ranks[rank]));
}

}  // namespace gtopk::reference
