// Sparse, algorithms room: what the list algorithms share: rooms for lists, the merge of a node,
// and what nodes dropped. It knows the tree's nodes, but not in which order messages walk them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "gtopk/algorithms/departure.hpp"
#include "gtopk/merge/merge.hpp"
#include "gtopk/value/entries.hpp"
#include "gtopk/wire/list_message.hpp"
#include "transport/base/tag.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
class Exchange {
 public:
  using List = ListMessage<Value, Index>;

  /// `reselects`: a node keeps the first k of its union (gTop-k), else all of it (Top-k).
  Exchange(engine::GroupView& group, const collectives::Signature& signature, bool reselects,
           MergeScratch& scratch)
      : group_(group), signature_(signature), reselects_(reselects), scratch_(scratch) {}

  [[nodiscard]] engine::GroupView& group() const { return group_; }

  /// Whether lists may be long enough to keep a link busy.
  [[nodiscard]] bool long_lists() const {
    return List::bytes_for(signature_.k) > kAcknowledgedBytes;
  }

  /// A list of up to `capacity` entries to write.
  [[nodiscard]] List make(std::size_t capacity) {
    return List(group_.buffer(List::bytes_for(capacity)), capacity);
  }
  /// Room for the list of a subtree of `ranks` ranks.
  [[nodiscard]] List room_for(std::uint64_t ranks) {
    const std::uint64_t k = signature_.k;
    if (reselects_) return make(k);
    return make(k > signature_.d / ranks ? signature_.d : k * ranks);
  }
  void seal(List& list, std::size_t count, bool finite) const {
    list.seal(signature_, group_.sequence(), count, finite);
  }
  [[nodiscard]] Departure send(std::uint32_t to, std::uint32_t step, const List& list) const {
    return Departure(group_, to, step, list.bytes());
  }
  /// Checks what has arrived and acknowledges it.
  void open(List& list, std::size_t received, std::uint32_t from, std::uint32_t step) const {
    list.open(received, signature_, group_, from);
    Departure::acknowledge(group_, from, step, list.bytes());
  }

  /// The node above two lists. `keeps_dropped`: this rank is the node's lowest and answers for what
  /// it drops.
  [[nodiscard]] List merge_node(const List& mine, const List& theirs, bool keeps_dropped) {
    const Entries<Value, Index> a = mine.entries();
    const Entries<Value, Index> b = theirs.entries();
    const std::size_t both = a.size + b.size;
    List node = make(reselects_ ? std::min<std::size_t>(signature_.k, both) : both);
    if (!mine.finite() || !theirs.finite()) {
      seal(node, 0, false);
      return node;
    }
    if (!reselects_) {
      const Merged merged = unite(a, b, node.room());
      seal(node, merged.kept, merged.finite);
      return node;
    }
    EntriesOut<Value, Index> dropped;
    if (keeps_dropped) {
      List list = make(both);  // never sent: only its room is used
      dropped = list.room();
    }
    const Merged merged =
        merge(a, b, signature_.k, node.room(), keeps_dropped ? &dropped : nullptr, scratch_);
    if (keeps_dropped && merged.finite && merged.dropped != 0) {
      dropped_.at(nodes_++) = {dropped.indices, dropped.values, merged.dropped};
    }
    seal(node, merged.kept, merged.finite);
    return node;
  }

  /// Partial sums for which this rank answers, from the leaves to the root.
  [[nodiscard]] std::span<const Entries<Value, Index>> dropped() const {
    return std::span(dropped_).first(nodes_);
  }

 private:
  engine::GroupView& group_;
  const collectives::Signature& signature_;
  bool reselects_;
  MergeScratch& scratch_;
  /// One list per node at most: the fold and the rounds.
  std::array<Entries<Value, Index>, 1 + transport::TagBits::kSource> dropped_{};
  std::size_t nodes_ = 0;
};

}  // namespace gtopk::sparse
