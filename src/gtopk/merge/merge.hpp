// Sparse, merge: turns two lists of entries into one, as a node of the gTop-k tree does.
// Commutative bit for bit. It knows no ranks, no tree and no wire.
#pragma once

#include <cstddef>

#include "src/gtopk/value/blocks.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/growing_buffer.hpp"
#include "src/gtopk/value/selection_order.hpp"

namespace gtopk::sparse {

struct Merged {
  std::size_t kept = 0;
  std::size_t dropped = 0;
  bool finite = true;  ///< false if a sum is NaN or Inf; the counts are then 0
};

/// Working storage of merge, kept from call to call; one per concurrent merge.
struct MergeScratch {
  GrowingBuffer indices;
  GrowingBuffer values;
  GrowingBuffer keys;
  GrowingBuffer counts;
};

/// Adds the values of equal indices and keeps the first k of the union in the selection order. Sums
/// of zero are neither kept nor dropped. Both outputs are sorted by index.
///
/// Capacity: min(k, |a| + |b|) in `kept`; |a| + |b| in `dropped`, which is null if not needed
/// (Merged::dropped still counts). `kept` and `dropped` are undefined if `finite` is false.
template <class Value, class Index>
[[nodiscard]] Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, std::size_t k,
                           EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
                           MergeScratch& scratch);

/// The same if each block keeps its own first entries. Capacity: min(blocks.keep(), |a| + |b|) in
/// `kept`.
template <class Value, class Index>
[[nodiscard]] Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, const Blocks& blocks,
                           EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
                           MergeScratch& scratch);

/// Keeps each block's own first entries of a finite list; drops other nonzero ones. Capacity:
/// min(blocks.keep(), |entries|) in `kept`, |entries| in `dropped`.
template <class Value, class Index>
[[nodiscard]] Merged cut(Entries<Value, Index> entries, const Blocks& blocks,
                         EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped,
                         MergeScratch& scratch);

/// Cuts a list at a known key: keeps entries with a larger key, and the first `equals` of those
/// with that key; drops other nonzero ones. Capacity: |entries| in both outputs.
template <class Value, class Index>
[[nodiscard]] Merged cut(Entries<Value, Index> entries, Key<Value> key, std::size_t equals,
                         EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped);

/// The sum of two lists without selection; sums of zero are kept, with either sign. Capacity: |a| +
/// |b|.
template <class Value, class Index>
[[nodiscard]] Merged unite(Entries<Value, Index> a, Entries<Value, Index> b,
                           EntriesOut<Value, Index> kept);

}  // namespace gtopk::sparse
