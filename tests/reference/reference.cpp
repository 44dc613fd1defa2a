// Reference: the collectives, top to bottom in the order of docs/algorithms.md.
#include "tests/reference/reference.hpp"
#include "tests/reference/reference_selectors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/reference/hosts.hpp"
#include "tests/reference/reference_coded.hpp"
#include "tests/reference/reference_dense.hpp"
#include "tests/reference/reference_hosts.hpp"
#include "tests/reference/reference_parts.hpp"
#include "tests/reference/reference_regions.hpp"
#include "tests/reference/reference_sketch.hpp"
#include "tests/reference/reference_tree.hpp"

namespace gtopk::reference {
namespace {

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

/// A header each way between the first leaves of every two subtrees of all ranks that meet.
void announce(std::vector<Lists>& lists) {
  const Shape shape(static_cast<std::uint32_t>(lists.size()));
  for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
    Lists& speaker = lists[shape.rank_of(leaf)];
    for (std::uint32_t width = 1; width < shape.leaves; width *= 2) {
      speaker.words.push_back(0);
      if ((leaf & width) != 0) {
        break;
      }
    }
    if (leaf >= shape.folded) {
      continue;
    }
    speaker.words.push_back(0);
    lists[shape.rank_of(leaf) + 1].words.push_back(0);
  }
}

/// gTop-k, topk, and gTop-k between hosts.
template <class Value>
TreeResult<Value> walk(std::vector<Entries<Value>>& selections, const SparseOptions& options,
                       std::uint64_t d, const HostRanks& by_host) {
  const auto ranks = static_cast<std::uint32_t>(selections.size());
  TreeResult<Value> result;
  result.lists.resize(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    round(selections[rank], rank, true, options, result);
  }
  std::vector<Subtree<Value>> nodes;
  if (options.algorithm != "hierarchical" && options.algorithm != "gtopk-placed") {
    const Exchange way = options.algorithm == "gtopk-tree" ? Exchange::kUpAndDown : Exchange::kBoth;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      nodes.push_back({rank, selections[rank]});
    }
    const Subtree<Value> root = climb(nodes, options, d, way, result);
    result.root = root.entries;
    result.senders = root.senders;
    descend(nodes, way, result);
    return result;
  }
  const bool placed = options.algorithm == "gtopk-placed";
  const Exchange inside = by_host.size() == 1 ? Exchange::kBoth : Exchange::kUpAndDown;
  std::vector<std::vector<Subtree<Value>>> members;
  for (const auto& host : by_host) {
    members.emplace_back();
    for (const std::uint32_t rank : host) {
      members.back().push_back({rank, selections[rank]});
    }
    nodes.push_back(placed ? climb(members.back(), options, d, inside, result)
                           : host_node(host, selections, options, d, result));
  }
  result.root = climb(nodes, options, d, Exchange::kBoth, result).entries;
  descend(nodes, Exchange::kBoth, result);
  const bool as_gtopk = by_host.size() == ranks || (placed && by_host.size() == 1);
  if (!as_gtopk) {
    announce(result.lists);
  }
  for (std::size_t host = 0; host < by_host.size(); ++host) {
    if (placed) {
      descend(members[host], inside, result);
      continue;
    }
    for (const std::uint32_t rank : by_host[host]) {
      const std::uint32_t leader = by_host[host].front();
      if (rank != leader) {
        count(result.lists, leader, rank, result.root.size());
      }
    }
  }
  return result;
}

/// What stays on one rank: acc without what was delivered or sent, plus what its nodes dropped.
template <class Value>
void put_back(std::vector<Value>& acc, std::uint32_t rank, const Entries<Value>& selection,
              const TreeResult<Value>& tree, const SparseOptions& options) {
  const bool own = options.put_back == PutBack::kOwn;
  for (const auto& [index, value] : selection) {
    if (!own || options.algorithm == "topk" || tree.root.contains(index)) {
      acc[index] = Value{0};
    }
  }
  for (const Dropped<Value>& dropped : tree.dropped) {
    if (dropped.rank != rank) {
      continue;
    }
    if (!own || tree.root.contains(dropped.index)) {
      acc[dropped.index] += dropped.value;
    }
  }
}

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30U;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27U;
  x *= 0x94D049BB133111EB;
  x ^= x >> 31U;
  return x;
}

/// The sums of acc at these indices, in the summation order for `count` values.
template <class Value>
Entries<Value> sums_at(const std::vector<std::vector<Value>>& accs,
                       const std::vector<std::uint64_t>& indices, std::uint64_t count,
                       const HostRanks& hosts) {
  std::vector<std::vector<Value>> values(accs.size());
  for (std::size_t rank = 0; rank < accs.size(); ++rank) {
    for (const std::uint64_t index : indices) {
      values[rank].push_back(accs[rank][index]);
    }
  }
  Entries<Value> sums;
  for (std::uint64_t i = 0; i < indices.size(); ++i) {
    sums[indices[i]] = dense_sum(values, i, count, hosts);
  }
  return sums;
}

/// The exact sums at the heavy hitters of `sketch`, or a non-finite cell if there is one.
template <class Value>
Entries<Value> heavy_sums(const std::vector<std::vector<Value>>& accs, const SketchShape& shape,
                          std::uint64_t seed, const HostRanks& hosts) {
  const auto places = all_places(accs.front().size(), seed, shape.columns);
  std::vector<std::vector<Value>> sketches;
  for (const std::vector<Value>& acc : accs) {
    sketches.push_back(sketched(acc, places, shape.cells()));
  }
  std::vector<Value> sketch;
  for (std::uint64_t cell = 0; cell < shape.cells(); ++cell) {
    sketch.push_back(dense_sum(sketches, cell, shape.cells(), hosts));
    if (!std::isfinite(sketch.back())) {
      return {{0, sketch.back()}};
    }
  }
  return sums_at(accs, heaviest(sketch, places, shape.second), shape.second, hosts);
}

/// Algorithms whose ranks do not select on their own: `random-k` sums all ranks' values at the
/// drawn indices; `true-topk` and `sketch` deliver the first k of all sums or of the heavy hitters.
/// What is delivered is cleared on every rank.
template <class Value>
Entries<Value> alike(std::vector<std::vector<Value>>& accs, const Problem& problem) {
  const std::uint64_t k = entries_wanted(problem.options, problem.d);
  const std::uint64_t seed = problem.options.seed.value_or(problem.number);
  const SketchShape shape(problem.d, k);
  const HostRanks hosts = ranks_by_host(problem);
  Entries<Value> sums;
  if (problem.options.algorithm == "random-k") {
    sums = sums_at(accs, drawn_indices(seed, problem.d, k), k, hosts);
  } else if (problem.options.algorithm == "sketch" && !shape.dense) {
    sums = heavy_sums(accs, shape, seed, hosts);
  } else {
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      sums[i] = dense_sum(accs, i, problem.d, hosts);
    }
  }
  if (!all_finite(sums)) {
    return sums;
  }
  if (problem.options.algorithm != "random-k") {
    std::vector<Dropped<Value>> rest;
    reselect(sums, k, 0, rest);
  }
  for (std::vector<Value>& acc : accs) {
    for (const auto& [index, sum] : sums) {
      acc[index] = Value{0};
    }
  }
  return sums;
}

/// Writes T(value / divisor) on F; returns whether all of it is finite. lists: what ranks sent.
template <class Value>
bool write(const Problem& problem, const Entries<Value>& sums,
           const std::vector<Entries<Value>>& lists, Bytes& tensor) {
  const SparseOptions& options = problem.options;
  bool finite = true;
  for (const auto& [index, sum] : sums) {
    auto mean_of = static_cast<std::ptrdiff_t>(problem.ranks.size());
    if (options.mean == MeanOver::kContributors) {
      mean_of = std::count_if(lists.begin(), lists.end(),
                              [at = index](const auto& list) { return list.contains(at); });
    }
    const double count = options.op == ReduceOp::kAvg ? static_cast<double>(mean_of) : 1;
    const auto divisor = static_cast<Value>(count / options.scale);
    store(problem.type, tensor, index, sum / divisor);
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
  for (const Input& input : problem.ranks) {
    outcome.residuals.push_back(input.residual);
    outcome.states.push_back(input.state);
  }
  return outcome;
}

template <class Value>
Bytes as_bytes(DataType type, const std::vector<Value>& values) {
  Bytes bytes = zeros(type, values.size());
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    store(type, bytes, i, values[i]);
  }
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
    if (!finite) {
      return nothing_happened(problem);
    }
  }

  Outcome outcome;
  Entries<Value> sums;
  std::vector<Entries<Value>> selections;
  for (const Input& input : problem.ranks) {
    outcome.states.push_back(input.state);
  }
  const bool placed = problem.options.algorithm == "dense-placed";
  const bool dense = problem.options.algorithm == "dense" || placed;
  if (dense && codes_blocks(problem.options.wire)) {
    const HostRanks hosts = ranks_by_host(problem);
    std::vector<std::vector<Value>> host_accs = placed ? sums_of_hosts(accs, hosts) : accs;
    sums = coded_sums(host_accs, problem.d, problem.options.wire);
    for (std::size_t i = 0; i < accs.size(); ++i) {
      accs[i] = placed ? std::vector<Value>(accs[i].size()) : host_accs[i];
    }
    for (std::size_t host = 0; placed && host < hosts.size(); ++host) {
      accs[hosts[host].front()] = host_accs[host];
    }
    if (!all_finite(sums)) {
      return nothing_happened(problem);
    }
    outcome.lists.resize(accs.size());
    outcome.selected.resize(accs.size());
  } else if (dense) {
    const HostRanks hosts = ranks_by_host(problem);
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      sums[i] = dense_sum(accs, i, problem.d, hosts);
    }
    if (!all_finite(sums)) {
      return nothing_happened(problem);
    }
    for (std::vector<Value>& acc : accs) {
      acc.assign(acc.size(), Value{0});
    }
    outcome.lists.resize(accs.size());
    outcome.selected.resize(accs.size());
  } else if (problem.options.algorithm == "random-k" || problem.options.algorithm == "true-topk" ||
             problem.options.algorithm == "sketch") {
    sums = alike(accs, problem);
    if (!all_finite(sums)) {
      return nothing_happened(problem);
    }
    outcome.lists.resize(accs.size());
    outcome.selected.resize(accs.size());
  } else {
    selections.reserve(accs.size());
    for (std::size_t rank = 0; rank < accs.size(); ++rank) {
      selections.push_back(select(accs[rank], problem.options, outcome.states[rank]));
    }
    SparseOptions options = problem.options;
    options.k = entries_wanted(options, problem.d);
    const TreeResult<Value> tree =
        by_regions(options.algorithm)
            ? walk_regions(selections, options, problem.d)
            : walk(selections, options, problem.d, ranks_by_host(problem));
    if (!tree.finite) {
      return nothing_happened(problem);
    }
    sums = tree.root;
    outcome.lists = tree.lists;
    for (std::uint32_t rank = 0; rank < accs.size(); ++rank) {
      outcome.selected.push_back(selections[rank].size());
      put_back(accs[rank], rank, selections[rank], tree, problem.options);
    }
  }

  outcome.tensor = zeros(problem.type, problem.d);
  if (!write(problem, sums, selections, outcome.tensor)) {
    return nothing_happened(problem);
  }
  outcome.delivered.insert(sums.begin(), sums.end());
  for (std::size_t rank = 0; rank < accs.size(); ++rank) {
    outcome.residuals.emplace_back();
    if (problem.ranks[rank].residual) {
      outcome.residuals.back() = as_bytes(acc_type, accs[rank]);
    }
  }
  return outcome;
}

}  // namespace

std::uint64_t drawn_number(std::uint64_t seed, std::uint64_t i) {
  return mixed(seed + i * 0x9E3779B97F4A7C15);
}

std::vector<std::uint64_t> drawn_indices(std::uint64_t seed, std::uint64_t d, std::uint64_t k) {
  unsigned bits = 0;  // of half an index
  while (bits < 32 && (std::uint64_t{1} << (2 * bits)) < d) {
    ++bits;
  }
  const std::uint64_t half = std::uint64_t{1} << bits;
  std::vector<std::uint64_t> indices;
  for (std::uint64_t element = 0; element < k; ++element) {
    std::uint64_t at = element;
    do {
      std::uint64_t high = at / half;
      std::uint64_t low = at % half;
      for (std::uint64_t round = 1; round <= 6; ++round) {
        const std::uint64_t key = drawn_number(seed, round);
        high ^= mixed(key ^ low) % half;
        std::swap(high, low);
      }
      at = high * half + low;
    } while (at >= d);
    indices.push_back(at);
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

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
