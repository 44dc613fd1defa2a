// Reference: lists up a tree and the root back down, among the ranks of a group, of a host, or one
// of each host. Part of the reference; nothing else includes it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/reference/reference_parts.hpp"

namespace gtopk::reference {

/// How lists go: every partner's to the other, or up to the first leaf and the root back down.
enum class Exchange : std::uint8_t { kBoth, kUpAndDown };

/// The lists go up the tree; topk drops nothing, and rounds no sums. What the tree calls its ranks
/// are `nodes`, each with the rank that speaks for it. Gives the root.
template <class Value>
Subtree<Value> climb(const std::vector<Subtree<Value>>& nodes, const SparseOptions& options,
                     std::uint64_t d, Exchange way, TreeResult<Value>& result) {
  const Shape shape(static_cast<std::uint32_t>(nodes.size()));
  const bool reselects = options.algorithm != "topk";
  const auto speaker = [&](std::uint32_t leaf) { return nodes[shape.rank_of(leaf)].lowest_rank; };

  const auto merge = [&](const Subtree<Value>& left, const Subtree<Value>& right) {
    Subtree<Value> node{
        left.lowest_rank, united(left.entries, right.entries),
        merged_senders(options, left.entries, left.senders, right.entries, right.senders)};
    result.finite = result.finite && all_finite(node.entries);
    if (!result.finite || !reselects) {
      return node;
    }
    reselect(node.entries, options, d, options.k, node.lowest_rank, result.dropped);
    round(node.entries, node.lowest_rank, false, options, result);
    return node;
  };

  std::vector<Subtree<Value>> subtrees;
  for (std::uint32_t leaf = 0; leaf < shape.leaves; ++leaf) {
    const Subtree<Value>& node = nodes[shape.rank_of(leaf)];
    subtrees.push_back(node);
    if (leaf >= shape.folded) {
      continue;
    }
    const Subtree<Value>& other = nodes[shape.rank_of(leaf) + 1];
    count(result.lists, other.lowest_rank, node.lowest_rank, other.entries.size());
    subtrees.back() = merge(node, other);
  }
  for (std::uint32_t width = 1; width < shape.leaves; width *= 2) {
    std::vector<Subtree<Value>> wider;
    for (std::uint32_t at = 0; at < subtrees.size(); at += 2) {
      const Subtree<Value>& left = subtrees[at];
      const Subtree<Value>& right = subtrees[at + 1];
      for (std::uint32_t i = 0; i < (way == Exchange::kBoth ? width : 1); ++i) {
        const std::uint32_t low = speaker(at * width + i);
        const std::uint32_t high = speaker((at + 1) * width + i);
        if (way == Exchange::kBoth) {
          count(result.lists, low, high, left.entries.size(), bytes_of(left.senders));
        }
        count(result.lists, high, low, right.entries.size(), bytes_of(right.senders));
      }
      wider.push_back(merge(left, right));
    }
    subtrees = std::move(wider);
  }
  return subtrees.front();
}

/// What the tree's root has become goes to those who have not got it on the way.
template <class Value>
void descend(const std::vector<Subtree<Value>>& nodes, Exchange way, TreeResult<Value>& result) {
  const Shape shape(static_cast<std::uint32_t>(nodes.size()));
  const auto speaker = [&](std::uint32_t leaf) { return nodes[shape.rank_of(leaf)].lowest_rank; };
  const std::uint64_t entries = result.root.size();
  for (std::uint32_t width = shape.leaves / 2; way == Exchange::kUpAndDown && width >= 1;
       width /= 2) {
    for (std::uint32_t leaf = 0; leaf < shape.leaves; leaf += 2 * width) {
      count(result.lists, speaker(leaf), speaker(leaf + width), entries);
    }
  }
  for (std::uint32_t leaf = 0; leaf < shape.folded; ++leaf) {
    count(result.lists, speaker(leaf), nodes[2 * leaf + 1].lowest_rank, entries,
          bytes_of(result.senders));
  }
}

}  // namespace gtopk::reference
