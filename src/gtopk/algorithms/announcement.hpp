// Sparse, algorithms: announces along the tree of all ranks what this rank has called, for
// algorithms that do not follow that tree.
//
// Walks along that tree detect by themselves that ranks have called differently, because each rank
// waits for its partners in the same order. A rank on another walk and the ranks on the tree would
// wait for each other until both time out. It is enough that the first leaves of two subtrees hear
// from each other: take the smallest subtree in which ranks differ. The ranks of each half agree,
// so ranks that walk the tree reach this node, and there the rank that waits for the other half's
// first leaf gets its header. All headers are sent at once, so this costs one message's time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::sparse {

class Announcement {
 public:
  /// Sends headers along the edges of a binomial tree, up and down at the same time, with the steps
  /// of recursive doubling.
  explicit Announcement(engine::GroupView& group)
      : group_(group), mine_(group.buffer(collectives::kHeaderBytes)) {
    using collectives::Tree;
    collectives::write_header(mine_, group);
    const Tree tree(group.size());
    const std::uint32_t rank = group.rank();
    const std::uint32_t folding = Tree::fold_partner(rank);
    if (tree.folded_away(rank)) {
      swap(folding, Tree::fold_step(), tree.unfold_step());
      return;
    }
    if (tree.folds(rank)) {
      swap(folding, tree.unfold_step(), Tree::fold_step());
    }
    for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
      swap(tree.partner(rank, round), Tree::round_step(round), Tree::round_step(round));
      if (!tree.on_left(rank, round)) {
        return;  // from here on, the lower subtree's first leaf represents both
      }
    }
  }

  /// Completes when all partners have announced the same call. Throws Error{kMismatch}.
  engine::Task<void> heard() {
    for (Partner& partner : std::span(partners_).first(count_)) {
      engine::Message& incoming = *partner.incoming;
      const std::size_t received = co_await incoming;
      engine::Task<collectives::Header> reading =
          collectives::read_header(partner.message.first(received), group_, partner.rank);
      const collectives::Header header = co_await reading;
      collectives::require_payload(header, {}, group_, partner.rank);
    }
  }

 private:
  struct Partner {
    std::uint32_t rank = 0;
    std::span<std::byte> message;
    std::optional<engine::Message> incoming;
  };

  void swap(std::uint32_t rank, std::uint32_t sent, std::uint32_t received) {
    Partner& partner = partners_.at(count_++);
    partner.rank = rank;
    partner.message = group_.buffer(collectives::kHeaderBytes);
    partner.incoming.emplace(group_.recv(rank, received, partner.message));
    const engine::Message outgoing = group_.send(rank, sent, mine_);
  }

  engine::GroupView& group_;
  std::span<std::byte> mine_;
  std::array<Partner, 1 + transport::TagBits::kSource> partners_;  // of the fold and the rounds
  std::size_t count_ = 0;
};

}  // namespace gtopk::sparse
