// Sparse, algorithms: what all ranks know about an exchange of lists before it begins.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/gtopk/value/blocks.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/wire/codec.hpp"

namespace gtopk::sparse {

/// The part that a selection adds to the message of a sum: its numbers of entries and bytes,
/// followed by its code, padded so that the next one is aligned.
struct SelectionHeader {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
};
[[nodiscard]] constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }
[[nodiscard]] constexpr std::size_t bytes_of_selection(std::size_t code) {
  return sizeof(SelectionHeader) + padded(code);
}

/// One exchange, as agreed by all ranks.
struct ListPlan {
  EntryType type;
  std::uint64_t d = 0;
  /// The most entries that a re-selecting node keeps.
  std::uint64_t k = 0;
  /// The most entries that one rank selects: k, or somewhat more with an approximate selector.
  std::uint64_t leaf = 0;
  /// Whether a node keeps only the first k of its union (gTop-k); otherwise it keeps all of it
  /// (Top-k).
  bool reselects = true;
  /// Whether a sum is sent as the selections in it if that takes fewer bytes.
  bool forwards = false;
  /// Whether lists count the ranks in each sum.
  bool counted = false;
  /// Set if each block has its own k; `k` is then their sum.
  Blocks blocks{};
  const Codec* codec = nullptr;

  /// The most entries of a list that covers that many ranks.
  [[nodiscard]] std::uint64_t entries_of(std::uint64_t ranks) const {
    if (reselects) {
      return leaf;
    }
    return leaf > d / ranks ? d : leaf * ranks;
  }
  /// The most bytes of such a list's message.
  [[nodiscard]] std::size_t message_bytes(std::uint64_t ranks) const;
};

}  // namespace gtopk::sparse
