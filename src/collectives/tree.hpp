// Collectives: the one tree that every reduction walks, for any number of ranks. This is pure
// arithmetic.
//
// p = 2^floor(log2 P), r = P - p. Ranks 2j and 2j+1 (j < r) fold into one leaf, represented by rank
// 2j; these r leaves and then the ranks 2r..P-1, in order, are the p leaves. In round t = 0, 1, ...
// neighbouring subtrees of 2^t leaves merge. Recursive doubling: leaf l exchanges with leaf l xor
// 2^t (Thakur et al. 2005).
#pragma once

#include <bit>
#include <cstdint>

namespace gtopk::collectives {

class Tree {
 public:
  constexpr explicit Tree(std::uint32_t ranks)
      : leaves_(std::bit_floor(ranks)), folded_(ranks - std::bit_floor(ranks)) {}

  /// The number of rounds: log2 of the number of leaves.
  [[nodiscard]] constexpr std::uint32_t rounds() const {
    return static_cast<std::uint32_t>(std::countr_zero(leaves_));
  }
  [[nodiscard]] constexpr std::uint32_t leaves() const { return leaves_; }
  [[nodiscard]] constexpr std::uint32_t ranks() const { return leaves_ + folded_; }

  /// Whether the rank shares a leaf with another.
  [[nodiscard]] constexpr bool folds(std::uint32_t rank) const { return rank < 2 * folded_; }
  /// Whether the rank's fold partner represents it; the rank then sends before round 0 and receives
  /// after the last.
  [[nodiscard]] constexpr bool folded_away(std::uint32_t rank) const {
    return folds(rank) && rank % 2 == 1;
  }
  [[nodiscard]] static constexpr std::uint32_t fold_partner(std::uint32_t rank) {
    return rank ^ 1U;
  }

  [[nodiscard]] constexpr std::uint32_t leaf(std::uint32_t rank) const {
    return folds(rank) ? rank / 2 : rank - folded_;
  }
  /// The rank that represents a leaf, its lowest.
  [[nodiscard]] constexpr std::uint32_t rank_of(std::uint32_t leaf) const {
    return leaf < folded_ ? 2 * leaf : leaf + folded_;
  }

  [[nodiscard]] constexpr std::uint32_t partner(std::uint32_t rank, std::uint32_t round) const {
    return rank_of(leaf(rank) ^ (1U << round));
  }
  /// Whether the rank is in the left (lower) of the two subtrees that merge in `round`.
  [[nodiscard]] constexpr bool on_left(std::uint32_t rank, std::uint32_t round) const {
    return ((leaf(rank) >> round) & 1U) == 0;
  }
  /// The lowest rank of the node that contains the rank after `round`; it keeps what the node
  /// drops.
  [[nodiscard]] constexpr std::uint32_t lowest_rank(std::uint32_t rank, std::uint32_t round) const {
    return rank_of((leaf(rank) >> (round + 1)) << (round + 1));
  }

  // Steps in message tags are the fold, the rounds, the unfold, and then, for trees, the way down.
  [[nodiscard]] static constexpr std::uint32_t fold_step() { return 0; }
  [[nodiscard]] static constexpr std::uint32_t round_step(std::uint32_t round) { return 1 + round; }
  [[nodiscard]] constexpr std::uint32_t unfold_step() const { return 1 + rounds(); }
  [[nodiscard]] constexpr std::uint32_t down_step(std::uint32_t round) const {
    return 2 + rounds() + round;
  }
  /// The first step that is free for later messages.
  [[nodiscard]] constexpr std::uint32_t end_step() const { return 2 + 2 * rounds(); }

 private:
  std::uint32_t leaves_;
  std::uint32_t folded_;
};

}  // namespace gtopk::collectives
