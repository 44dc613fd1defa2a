// Sparse, algorithms: the vocabulary of the algorithms' cost functions: the critical path of one
// call, step by step. It is the path of rank 0, which represents the largest subtree; if ranks
// fold, it includes the path from rank 1 to rank 0 and back. A step in which any message goes to
// another host is a step between hosts. This is pure arithmetic. Lists are assumed to have the
// length that they have if no two ranks select the same index.
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

/// The values on which a plan depends; they are the same on all ranks.
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

/// The content of a list, which decides how its values are sent (docs/algorithms.md, The wire).
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
  /// The number of ranks in the subtree of rank 0 before `round`.
  [[nodiscard]] std::uint64_t ranks_below(std::uint32_t round) const;
  /// The most entries of a union of this many selections.
  [[nodiscard]] std::uint64_t united(std::uint64_t ranks) const;

  /// Adds one reading sweep at the start and one writing sweep at the end, for a result of this
  /// many entries.
  void sweep(std::uint64_t result);
  /// Adds the same if the list is all of acc.
  void sweep_whole();
  /// Adds sending a list, with the acknowledgement of a long one.
  void list(std::uint64_t entries, Holds holds, Route route);
  /// Adds sending the sum of this many ranks' selections, of k entries each, on a wire that rounds.
  /// It is sent as a sum, or as the selections if that takes fewer bytes.
  void sum_or_selections(std::uint64_t ranks, Route route);
  /// Adds a message of a header and `bytes` bytes.
  void message(std::uint64_t bytes, Route route);
  /// Adds a list of k entries from a partner, which is merged with a list of equal length, keeping
  /// k entries.
  void node(std::uint64_t k, Route route) {
    list(k, Holds::kSelection, route);
    merge(2 * k, k);
  }
  /// Adds gTop-k by recursive doubling along a tree whose steps all take the same route.
  void doubling(const collectives::Tree& tree, Route route);
  /// Adds a node above two lists with this many entries in total, which re-selects `keep` of them
  /// or keeps all. This rank is responsible for the entries that the node drops.
  void merge(std::uint64_t entries, std::uint64_t keep) {
    work_.merged += entries;
    drop(entries - std::min(entries, keep));
  }
  void unite(std::uint64_t entries) { work_.united += entries; }
  /// Adds entries that this rank puts back at the end.
  void drop(std::uint64_t entries) { work_.applied += entries; }
  /// Adds copying a part of a list to a list, or joining parts.
  void copy(std::uint64_t entries) { work_.copied += entries; }
  void add(std::uint64_t elements) { work_.added += elements; }
  /// Adds collectives::agree.
  void agree() { headers_along_tree(0); }
  /// Adds a message of this many bytes from each of `ranks` ranks to every other. Long messages are
  /// sent one at a time, each acknowledged.
  void spread(std::size_t bytes, std::uint32_t ranks, Route route);
  /// The route of a message from every rank to a rank of another host.
  [[nodiscard]] Route between_all() const;
  /// Adds collectives::reduce_over_ranks of this many values of the accumulation type.
  void reduce(std::uint64_t values);

  [[nodiscard]] const Work& work() const { return work_; }

 private:
  /// Adds the messages of recursive doubling, with this many bytes behind each header.
  void headers_along_tree(std::uint64_t bytes);
  void carry(std::uint64_t messages, double bytes, Route route);
  [[nodiscard]] double bytes_of(std::uint64_t entries, Holds holds) const;
  void carry_list(double bytes, Route route) {
    carry(bytes > static_cast<double>(kAcknowledgedBytes) ? 2 : 1, bytes, route);
  }
  /// Adds a reduction round a ring of this many ranks, and a second round that distributes the
  /// sums.
  void ring(std::uint64_t values, std::uint32_t ranks, Route route);

  CostShape shape_;
  Work work_;
};

}  // namespace gtopk::sparse
