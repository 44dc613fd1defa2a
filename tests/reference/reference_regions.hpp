// Reference: the algorithms of the reference that work by regions, `rs-ag` and `exact`, one leaf
// after the other. Part of the reference; nothing else includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/reference/reference_parts.hpp"

namespace gtopk::reference {

inline bool by_regions(const std::string& algorithm) {
  return algorithm == "rs-ag" || algorithm == "exact";
}

/// floor(part * whole / parts), of which no product overflows.
inline std::uint64_t share(std::uint64_t whole, std::uint64_t parts, std::uint64_t part) {
  return part * (whole / parts) + part * (whole % parts) / parts;
}

/// Where each region begins, and where the last one ends: the average over the leaves of where
/// equal parts of their lists begin; where k is d, equal parts of all indices. Under `block`
/// regions begin where blocks do.
template <class Value>
std::vector<std::uint64_t> region_borders(const std::vector<Entries<Value>>& leaves,
                                          std::uint64_t regions, const SparseOptions& options,
                                          std::uint64_t d) {
  std::vector<std::uint64_t> borders(regions + 1, 0);
  borders.back() = d;
  for (std::uint64_t cut = 1; cut < regions; ++cut) {
    for (const Entries<Value>& leaf : leaves) {
      auto entry = leaf.begin();
      std::advance(entry, share(leaf.size(), regions, cut));
      borders[cut] += leaf.empty() || options.k == d ? share(d, regions, cut) : entry->first;
    }
    borders[cut] /= leaves.size();
    if (options.selector == "block") {
      borders[cut] = borders[cut] / options.block * options.block;
    }
  }
  return borders;
}

/// What the leaves hold on their way: regions first ... first + width - 1.
template <class Value>
struct Held {
  std::uint64_t first = 0;
  std::uint64_t width = 1;
  Entries<Value> entries;
  Senders senders{};
};

template <class Value>
TreeResult<Value> walk_regions(std::vector<Entries<Value>>& selections,
                               const SparseOptions& options, std::uint64_t d) {
  const bool exact = options.algorithm == "exact";
  const std::uint64_t k = std::min(options.k, d);
  const auto ranks = static_cast<std::uint32_t>(selections.size());
  const Shape shape(ranks);
  TreeResult<Value> result;
  result.lists.resize(ranks);
  std::vector<Lists>& lists = result.lists;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    round(selections[rank], rank, true, options, result);
  }

  // A region has capacity for one entry at least, unless the cut comes at the end.
  std::uint64_t regions = 1;
  while (2 * regions <= shape.leaves && (exact || 2 * regions <= k)) {
    regions *= 2;
  }

  const auto merge = [&](const Entries<Value>& left, const Entries<Value>& right,
                         std::uint64_t most, std::uint32_t rank, bool answers) {
    Entries<Value> node = united(left, right);
    result.finite = result.finite && all_finite(node);
    if (!result.finite || exact) {
      return node;
    }
    TreeResult<Value> made;
    reselect(node, options, d, most, rank, made.dropped);
    round(node, rank, false, options, made);
    result.finite = result.finite && made.finite;
    if (answers) {
      result.dropped.insert(result.dropped.end(), made.dropped.begin(), made.dropped.end());
    }
    return node;
  };
  const auto most = [&](const Held<Value>& held) {
    return share(k, regions, held.first + held.width) - share(k, regions, held.first);
  };

  std::vector<Entries<Value>> folded;
  std::vector<Senders> senders(shape.leaves);
  for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
    const std::uint32_t rank = shape.rank_of(leaf);
    folded.push_back(selections[rank]);
    if (leaf >= shape.folded) {
      continue;
    }
    count(lists, rank + 1, rank, selections[rank + 1].size());
    folded.back() = merge(selections[rank], selections[rank + 1], k, rank, true);
    senders[leaf] = merged_senders(options, selections[rank], {}, selections[rank + 1], {});
  }
  const std::vector<std::uint64_t> borders = region_borders(folded, regions, options, d);
  std::vector<Held<Value>> held;
  for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
    held.push_back({0, regions, folded[leaf], senders[leaf]});
  }

  const auto agree = [&](std::uint64_t words) {
    for (std::uint32_t width = 1; width < shape.leaves; width *= 2) {
      for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
        lists[shape.rank_of(leaf)].words.push_back(words);
      }
    }
  };
  agree(regions - 1);

  for (std::uint32_t distance = 1; distance < shape.leaves; distance *= 2) {
    std::vector<Held<Value>> next;
    for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
      const std::uint32_t partner = leaf ^ distance;
      Held<Value> now = held[leaf];
      if (distance < regions) {
        now.width /= 2;
        if ((leaf & distance) != 0) {
          now.first += now.width;
        }
      }
      const auto here = [&](const auto& entries) {
        return within(entries, borders[now.first], borders[now.first + now.width]);
      };
      const Entries<Value> theirs = here(held[partner].entries);
      const Senders of_theirs = here(held[partner].senders);
      count(lists, shape.rank_of(partner), shape.rank_of(leaf), theirs.size(), bytes_of(of_theirs));
      // Of the leaves of one node that cover the same regions the lowest answers.
      const std::uint32_t lowest = (leaf & ~(2 * distance - 1)) | (leaf & (regions - 1));
      const bool alone = distance < regions;
      now.entries = merge(here(held[leaf].entries), theirs, most(now),
                          shape.rank_of(alone ? leaf : lowest), alone || leaf == lowest);
      now.senders = merged_senders(options, here(held[leaf].entries), here(held[leaf].senders),
                                   theirs, of_theirs);
      next.push_back(std::move(now));
    }
    held = std::move(next);
  }

  if (exact) {
    for (std::size_t digit = 0; options.selector != "block" && digit < sizeof(Value); ++digit) {
      agree(256);
    }
    Entries<Value> sums;
    for (const Held<Value>& each : held) {
      sums.insert(each.entries.begin(), each.entries.end());
    }
    std::vector<Dropped<Value>> dropped;
    reselect(sums, options, d, k, 0, dropped);
    for (const Dropped<Value>& each : dropped) {
      for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
        if (!held[leaf].entries.contains(each.index)) {
          continue;
        }
        result.dropped.push_back({shape.rank_of(leaf), each.index, each.value});
      }
    }
    for (Held<Value>& each : held) {
      const auto cut = [&](const auto& entry) { return !sums.contains(entry.first); };
      std::erase_if(each.entries, cut);
      std::erase_if(each.senders, cut);
    }
  }

  for (auto distance = static_cast<std::uint32_t>(regions / 2); distance >= 1; distance /= 2) {
    std::vector<Held<Value>> next = held;
    for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
      const Held<Value>& theirs = held[leaf ^ distance];
      count(lists, shape.rank_of(leaf ^ distance), shape.rank_of(leaf), theirs.entries.size(),
            bytes_of(theirs.senders));
      next[leaf].first = std::min(held[leaf].first, theirs.first);
      next[leaf].width *= 2;
      next[leaf].entries.insert(theirs.entries.begin(), theirs.entries.end());
      next[leaf].senders.insert(theirs.senders.begin(), theirs.senders.end());
    }
    held = std::move(next);
  }
  result.root = held.front().entries;
  for (std::uint32_t leaf = 0; leaf < shape.folded; ++leaf) {
    count(lists, 2 * leaf, 2 * leaf + 1, result.root.size(), bytes_of(held.front().senders));
  }
  return result;
}

}  // namespace gtopk::reference
