// Reference: the sums of `dense`, element by element, in the order of the tree or of the rings
// inside hosts and across them. Part of the reference; nothing else includes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/reference/reference_hosts.hpp"
#include "tests/reference/reference_parts.hpp"

namespace gtopk::reference {

/// The ring's sum of element i over those ranks: it ends at the one with that place.
template <class ValueAt>
auto ring_sum(std::size_t places, std::size_t place, ValueAt value_at) {
  auto sum = value_at((place + 1) % places);
  for (std::size_t step = 2; step <= places; ++step) {
    sum += value_at((place + step) % places);
  }
  return sum;
}

/// The sum of element i over all ranks, which ends at rank `last`: inside hosts and then across
/// them if all have as many ranks, more than one; else round all ranks, host after host.
template <class Value>
Value sum_by_hosts(const std::vector<std::vector<Value>>& accs, std::uint64_t i, std::uint32_t last,
                   const HostRanks& hosts) {
  const auto place_of = [&](const std::vector<std::uint32_t>& ranks) {
    return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), last) - ranks.begin());
  };
  const std::size_t each = hosts.front().size();
  const bool alike =
      std::all_of(hosts.begin(), hosts.end(), [&](const auto& on) { return on.size() == each; });
  if (hosts.size() == 1 || each == 1 || !alike) {
    std::vector<std::uint32_t> all;
    for (const std::vector<std::uint32_t>& on : hosts) {
      all.insert(all.end(), on.begin(), on.end());
    }
    return ring_sum(all.size(), place_of(all), [&](std::size_t at) { return accs[all[at]][i]; });
  }
  const auto host = static_cast<std::size_t>(
      std::find_if(hosts.begin(), hosts.end(),
                   [&](const auto& on) { return place_of(on) != on.size(); }) -
      hosts.begin());
  const std::size_t place = place_of(hosts[host]);
  return ring_sum(hosts.size(), host, [&](std::size_t on) {
    return ring_sum(each, place, [&](std::size_t at) { return accs[hosts[on][at]][i]; });
  });
}

/// The sum of element i over all ranks, in the order that dense defines.
template <class Value>
Value dense_sum(const std::vector<std::vector<Value>>& accs, std::uint64_t i, std::uint64_t d,
                const HostRanks& hosts) {
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
  while (i >= begin_of(chunk + 1)) {
    ++chunk;
  }
  return sum_by_hosts(accs, i, chunk, hosts);
}

}  // namespace gtopk::reference
