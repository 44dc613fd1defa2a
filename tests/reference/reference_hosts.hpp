// Reference: what goes by hosts: which ranks share one; and of `hierarchical` the lists of each
// host, added up. Part of the reference; nothing else includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/reference/hosts.hpp"
#include "tests/reference/reference.hpp"
#include "tests/reference/reference_parts.hpp"

namespace gtopk::reference {

/// Ranks by host, ascending; hosts in the order of their lowest ranks.
using HostRanks = std::vector<std::vector<std::uint32_t>>;

inline HostRanks ranks_by_host(const std::vector<std::string>& hosts) {
  HostRanks grouped;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
    const auto same = std::find_if(grouped.begin(), grouped.end(), [&](const auto& ranks) {
      return hosts[ranks.front()] == hosts[rank];
    });
    if (same == grouped.end()) {
      grouped.push_back({rank});
    } else {
      same->push_back(rank);
    }
  }
  return grouped;
}

inline HostRanks ranks_by_host(const Problem& problem) {
  return ranks_by_host(problem.hosts.empty()
                           ? support::usual_hosts(static_cast<std::uint32_t>(problem.ranks.size()))
                           : problem.hosts);
}

/// The sum of each host's accs in the order of its ranks.
template <class Value>
std::vector<std::vector<Value>> sums_of_hosts(const std::vector<std::vector<Value>>& accs,
                                              const HostRanks& hosts) {
  std::vector<std::vector<Value>> sums;
  for (const std::vector<std::uint32_t>& ranks : hosts) {
    sums.push_back(accs[ranks.front()]);
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      const std::vector<Value>& acc = accs[ranks[i]];
      std::transform(acc.begin(), acc.end(), sums.back().begin(), sums.back().begin(),
                     [](Value value, Value sum) { return sum + value; });
    }
  }
  return sums;
}

/// The sum of a host's lists in the order of its ranks, its first k, which are rounded; the lowest
/// rank answers for the rest. One rank's list is the host's.
template <class Value>
Subtree<Value> host_node(const std::vector<std::uint32_t>& ranks,
                         const std::vector<Entries<Value>>& selections,
                         const SparseOptions& options, std::uint64_t d, TreeResult<Value>& result) {
  Subtree<Value> node{ranks.front(), selections[ranks.front()]};
  if (ranks.size() == 1) {
    return node;
  }
  for (const std::uint32_t rank : ranks) {
    if (rank == ranks.front()) {
      continue;
    }
    count(result.lists, rank, ranks.front(), selections[rank].size());
    node.entries = united(node.entries, selections[rank]);
  }
  result.finite = result.finite && all_finite(node.entries);
  if (!result.finite) {
    return node;
  }
  reselect(node.entries, options, d, options.k, node.lowest_rank, result.dropped);
  round(node.entries, node.lowest_rank, false, options, result);
  return node;
}

}  // namespace gtopk::reference
