// Sparse, algorithms: the indices [0, d) cut into regions of consecutive indices, and a leaf's way
// through them: by recursive halving to the one region that it reduces, and by recursive doubling
// back to all. This module knows neither which entries a node keeps nor why.
//
// In round t = 0, 1, ... leaf l swaps with leaf l xor 2^t, as in the tree, so that sums are added
// in the tree's order; bit t of l says which half of its range the leaf keeps. With s rounds of
// halving there are 2^s regions, and the leaf's region is the one whose number is the lowest s bits
// of l in reverse.
#pragma once

#include <cstdint>
#include <span>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/list_exchange.hpp"

namespace gtopk::sparse {

/// The regions [first, end).
struct RegionRange {
  std::uint32_t first = 0;
  std::uint32_t end = 1;

  [[nodiscard]] RegionRange half(bool upper) const {
    const std::uint32_t middle = first + (end - first) / 2;
    return upper ? RegionRange{middle, end} : RegionRange{first, middle};
  }
};

class Regions {
 public:
  /// `cuts` says where regions 1, 2, ... begin; the memory must stay valid.
  Regions(std::span<const std::uint64_t> cuts, std::uint64_t d, std::uint64_t k)
      : cuts_(cuts), d_(d), k_(k) {}

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(cuts_.size()) + 1; }
  [[nodiscard]] std::uint64_t begin(std::uint32_t region) const {
    if (region == 0) {
      return 0;
    }
    return region == count() ? d_ : cuts_[region - 1];
  }
  /// The number of entries, out of k, that these regions have together.
  [[nodiscard]] std::uint64_t entries(RegionRange range) const {
    return collectives::chunk_begin(k_, count(), range.end) -
           collectives::chunk_begin(k_, count(), range.first);
  }

 private:
  std::span<const std::uint64_t> cuts_;
  std::uint64_t d_;
  std::uint64_t k_;
};

/// Agrees with all leaves on 2^splits regions. If each leaf's list is divided into 2^splits parts,
/// cut j is the average over the leaves of where the j-th part begins; with k = d all regions have
/// the same length. With blocks, a cut moves down to the beginning of a block. Takes as many steps
/// as the tree has rounds.
engine::Task<Regions> agree_on_regions(ListExchange& exchange, const collectives::Tree& tree,
                                       const List& mine, std::uint32_t splits,
                                       std::uint32_t first_step);

/// One leaf's way through the regions.
class RegionWalk {
 public:
  RegionWalk(ListExchange& exchange, const collectives::Tree& tree, Regions regions)
      : exchange_(exchange),
        tree_(tree),
        regions_(regions),
        rank_(exchange.group().rank()),
        range_{0, regions.count()} {}

  /// The regions that this leaf's list covers now.
  [[nodiscard]] RegionRange range() const { return range_; }

  /// Sends the partner its half of the range, and merges the partner's entries of this leaf's half
  /// with its own. `ranks` is the number of ranks that the partner's list covers.
  engine::Task<List> halve(List mine, std::uint32_t round, std::uint32_t step, std::uint64_t ranks);
  /// Swaps ranges with the partner and joins them: the inverse of halve(round).
  engine::Task<List> join(List mine, std::uint32_t round, std::uint32_t step);

 private:
  [[nodiscard]] bool upper(std::uint32_t round) const { return !tree_.on_left(rank_, round); }
  /// Throws Error{kMismatch} if `from` cut its regions differently or sent too much.
  void require_within(const List& list, RegionRange range, std::uint64_t most,
                      std::uint32_t from) const;

  ListExchange& exchange_;
  const collectives::Tree& tree_;
  Regions regions_;
  std::uint32_t rank_;
  RegionRange range_;
};

}  // namespace gtopk::sparse
