// Sparse, algorithms: sums of unsigned integers over the leaves of the tree, by recursive doubling.
// They are numbers on which all leaves must agree (where regions are cut, how many keys have which
// size). This module does not know lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/collectives/tree.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

/// One leaf's part, for the rank that represents it. It can be reused; a sum takes as many steps as
/// the tree has rounds, each with one message of all words.
class LeafSum {
 public:
  LeafSum(engine::GroupView& group, const collectives::Tree& tree, std::size_t words);

  /// The words that this leaf adds; afterwards the sums, which are the same on every leaf.
  [[nodiscard]] std::span<std::uint64_t> words() const { return words_of(mine_); }

  /// Sums with the nearest leaf first. Throws Error{kMismatch} for anything that no rank of this
  /// call would have sent.
  engine::Task<void> sum(std::uint32_t first_step);
  /// Sums with the farthest leaf first, as regions join (regions.hpp). `below` also gets the sums
  /// over only the leaves whose regions are below this leaf's.
  engine::Task<void> sum(std::uint32_t first_step, std::span<std::uint64_t> below);

 private:
  [[nodiscard]] std::span<std::uint64_t> words_of(std::span<std::byte> message) const;
  /// Swaps words with a partner; returns the partner's words.
  engine::Task<std::span<const std::uint64_t>> swap(std::uint32_t round, std::uint32_t step);

  engine::GroupView& group_;
  const collectives::Tree& tree_;
  std::size_t size_;
  std::span<std::byte> mine_;
  std::span<std::byte> theirs_;
};

}  // namespace gtopk::sparse
