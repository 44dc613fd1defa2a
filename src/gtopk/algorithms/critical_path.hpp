// Sparse, algorithms: the vocabulary of the algorithms' cost functions: the critical path of
// one call, step by step. It is the path of rank 0, which represents the largest subtree; if ranks
// fold, with the path from rank 1 to it and back. A step in which any message goes to another host
// is a step between hosts. Pure arithmetic; lists have the length that they have if no two ranks
// select the same index.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/collectives/routes.hpp"
#include "src/collectives/tree.hpp"
#include "src/gtopk/algorithms/parts.hpp"
#include "src/gtopk/plan/work.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/wire/codec.hpp"

namespace gtopk::sparse {

using collectives::kOneOfEachHost;
using collectives::kWithin;
using collectives::Route;
using collectives::Routes;

/// What a plan depends on, the same on all ranks.
struct CostShape {
  const Routes* routes = nullptr;
  std::uint64_t d = 0;
  std::uint64_t k = 0;
  EntryType type;
  const Codec* codec = nullptr;
  /// Whether each block has its own k.
  bool per_block = false;
  /// Whether each sum is sent with its number of ranks.
  bool counted = false;
};

/// What a list holds, which decides how its values are sent (docs/algorithms.md, The wire).
enum class Holds : std::uint8_t {
  kSelection,  ///< entries selected, by a rank or a node: rounded
  kPart,       ///< a part of a selection: rounded if parts can be
  kSums,       ///< sums that are not selected from: never rounded
};

class CriticalPath {
 public:
  explicit CriticalPath(const CostShape& shape) : shape_(shape) {}

  [[nodiscard]] const CostShape& shape() const { return shape_; }
  [[nodiscard]] const Routes& routes() const { return *shape_.routes; }
  [[nodiscard]] const collectives::Tree& tree() const { return routes().tree(); }
  /// Whether some ranks share a leaf, rank 0 among them.
  [[nodiscard]] bool folds() const { return tree().folds(0); }
  /// Ranks in the subtree of rank 0 before `round`.
  [[nodiscard]] std::uint64_t ranks_below(std::uint32_t round) const;
  /// The most entries of a union of this many selections.
  [[nodiscard]] std::uint64_t united(std::uint64_t ranks) const;

  /// One reading sweep at the start and one writing sweep at the end, for a result of this many
  /// entries.
  void sweep(std::uint64_t result);
  /// The same if the list is all of acc.
  void sweep_whole();
  /// A list on its way, with the acknowledgement of a long one.
  void list(std::uint64_t entries, Holds holds, Route route);
  /// The sum of this many ranks' selections, of k entries each, on a wire that rounds: sent as
  /// itself, or as these if that takes fewer bytes.
  void sum_or_selections(std::uint64_t ranks, Route route);
  /// A header followed by `bytes` bytes.
  void message(std::uint64_t bytes, Route route);
  /// A list of k entries from a partner, merged with one of equal length, of which k are kept.
  void node(std::uint64_t k, Route route) {
    list(k, Holds::kSelection, route);
    merge(2 * k, k);
  }
  /// gTop-k by recursive doubling along a tree whose steps all take the same route.
  void doubling(const collectives::Tree& tree, Route route);
  /// A node above two lists with this many entries in total, which re-selects `keep` of them or
  /// keeps all. This rank is responsible for what it drops.
  void merge(std::uint64_t entries, std::uint64_t keep) {
    work_.merged += entries;
    drop(entries - std::min(entries, keep));
  }
  void unite(std::uint64_t entries) { work_.united += entries; }
  /// Entries that this rank puts back at the end.
  void drop(std::uint64_t entries) { work_.applied += entries; }
  /// A part of a list copied to a list, or parts joined.
  void copy(std::uint64_t entries) { work_.copied += entries; }
  void add(std::uint64_t elements) { work_.added += elements; }
  /// collectives::agree.
  void agree() { headers_along_tree(0); }
  /// A message of this many bytes from each of so many ranks to every other; long ones are sent one
  /// at a time, each acknowledged.
  void spread(std::size_t bytes, std::uint32_t ranks, Route route);
  /// The route of a message from every rank to a rank of another host.
  [[nodiscard]] Route between_all() const;
  /// collectives::reduce_over_ranks of this many values of the accumulation type.
  void reduce(std::uint64_t values);

  [[nodiscard]] const Work& work() const { return work_; }

 private:
  /// The messages of recursive doubling, with this many bytes behind each header.
  void headers_along_tree(std::uint64_t bytes);
  void carry(std::uint64_t messages, double bytes, Route route);
  [[nodiscard]] double bytes_of(std::uint64_t entries, Holds holds) const;
  void carry_list(double bytes, Route route) {
    carry(bytes > static_cast<double>(kAcknowledgedBytes) ? 2 : 1, bytes, route);
  }
  /// A reduction round a ring of this many ranks, then the sums round it once more.
  void ring(std::uint64_t values, std::uint32_t ranks, Route route);

  CostShape shape_;
  Work work_;
};

}  // namespace gtopk::sparse
