// Sparse, algorithms room: what the cost functions of algorithms are written with: the critical
// path of one call, step by step. It is the way of rank 0, which speaks for the largest subtree,
// and where ranks fold that of rank 1 to it and back. Pure arithmetic; lists are as long as they
// get when no two ranks select the same index.
#pragma once

#include <cstdint>

#include "src/collectives/tree.hpp"
#include "src/gtopk/plan/work.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/wire/codec.hpp"

namespace gtopk::sparse {

/// What a plan depends on, the same on all ranks.
struct CostShape {
  std::uint32_t ranks = 1;
  std::uint64_t d = 0;
  std::uint64_t k = 0;
  EntryType type;
  const Codec* codec = nullptr;
};

/// What a list holds, which decides on how its values travel (docs/algorithms.md, The wire).
enum class Holds : std::uint8_t {
  kSelection,  ///< entries selected, by a rank or a node: rounded
  kPart,       ///< a part of one: rounded where parts can be
  kSums,       ///< sums that nobody selects from: never rounded
};

class CriticalPath {
 public:
  explicit CriticalPath(const CostShape& shape) : shape_(shape), tree_(shape.ranks) {}

  [[nodiscard]] const CostShape& shape() const { return shape_; }
  [[nodiscard]] const collectives::Tree& tree() const { return tree_; }
  /// Whether some ranks share a leaf, rank 0 among them.
  [[nodiscard]] bool folds() const { return tree_.folds(0); }
  /// Ranks in the subtree of rank 0 before `round`.
  [[nodiscard]] std::uint64_t ranks_below(std::uint32_t round) const;
  /// The most entries of a union of so many selections.
  [[nodiscard]] std::uint64_t united(std::uint64_t ranks) const;

  /// One reading sweep at the start and one writing sweep at the end.
  void sweep();
  /// A list on its way, with the acknowledgement of a long one.
  void list(std::uint64_t entries, Holds holds);
  /// A header and `bytes` behind it.
  void message(std::uint64_t bytes);
  /// A node above two lists of so many entries in all, which selects again or keeps all.
  void merge(std::uint64_t entries) { work_.merged += entries; }
  void unite(std::uint64_t entries) { work_.united += entries; }
  void add(std::uint64_t elements) { work_.added += elements; }
  /// collectives::reduce_over_ranks of so many values of the accumulation type.
  void reduce(std::uint64_t values);

  [[nodiscard]] const Work& work() const { return work_; }

 private:
  CostShape shape_;
  collectives::Tree tree_;
  Work work_;
};

}  // namespace gtopk::sparse
