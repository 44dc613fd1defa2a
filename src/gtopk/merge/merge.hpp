// Sparse, merge: turns two lists of entries into one, as a node of the gTop-k tree does. It is
// commutative bit for bit, and does not depend on ranks, the tree or the wire.
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

/// Working storage of merge, kept from call to call. Each concurrent merge needs its own.
struct MergeScratch {
  GrowingBuffer indices;
  GrowingBuffer values;
  GrowingBuffer keys;
  GrowingBuffer counts;
};

/// Adds the values of equal indices and keeps the first k of the union in the selection order. Sums
/// of zero are neither kept nor dropped. Both outputs are sorted by index.
///
/// `kept` needs capacity min(k, |a| + |b|), and `dropped` |a| + |b|. `dropped` is null if not
/// needed (Merged::dropped still counts). `kept` and `dropped` are undefined if `finite` is false.
template <class Value, class Index>
[[nodiscard]] Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, std::size_t k,
                           EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
                           MergeScratch& scratch);

/// Does the same if each block keeps its own first entries. `kept` needs capacity
/// min(blocks.keep(), |a| + |b|).
template <class Value, class Index>
[[nodiscard]] Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, const Blocks& blocks,
                           EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
                           MergeScratch& scratch);

/// Keeps each block's own first entries of a finite list, and drops other nonzero entries. `kept`
/// needs capacity min(blocks.keep(), |entries|), and `dropped` |entries|.
template <class Value, class Index>
[[nodiscard]] Merged cut(Entries<Value, Index> entries, const Blocks& blocks,
                         EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped,
                         MergeScratch& scratch);

/// Cuts a list at a known key: keeps entries with a larger key and the first `equals` of the
/// entries with that key, and drops other nonzero entries. Both outputs need capacity |entries|.
template <class Value, class Index>
[[nodiscard]] Merged cut(Entries<Value, Index> entries, Key<Value> key, std::size_t equals,
                         EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped);

/// Computes the sum of two lists without selection; sums of zero are kept, with either sign.
/// Capacity: |a| +
/// |b|.
template <class Value, class Index>
[[nodiscard]] Merged unite(Entries<Value, Index> a, Entries<Value, Index> b,
                           EntriesOut<Value, Index> kept);

}  // namespace gtopk::sparse
