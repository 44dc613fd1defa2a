// Sparse, merge room: two lists of entries become one; what a node of the gTop-k tree does.
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
  bool finite = true;  ///< false when a sum is NaN or Inf; the counts are 0 then
};

/// Working storage of merge, kept from call to call; one per concurrent merge.
struct MergeScratch {
  GrowingBuffer indices;
  GrowingBuffer values;
  GrowingBuffer keys;
  GrowingBuffer counts;
};

/// Adds the values of equal indices and keeps the first k of the union in the selection order.
/// Sums of zero are neither kept nor dropped. Both outputs are sorted by index.
///
/// Room: min(k, |a| + |b|) in `kept`; |a| + |b| in `dropped`, which is null when nobody wants it
/// (Merged::dropped still counts). `kept` and `dropped` are undefined when `finite` is false.
template <class Value, class Index>
[[nodiscard]] Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, std::size_t k,
                           EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
                           MergeScratch& scratch);

/// The same where each block keeps its own first entries. Room: min(blocks.keep(), |a| + |b|) in
/// `kept`.
template <class Value, class Index>
[[nodiscard]] Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, const Blocks& blocks,
                           EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
                           MergeScratch& scratch);

/// A finite list of which each block keeps its own first entries; drops other non-zeros. Room:
/// min(blocks.keep(), |entries|) in `kept`, |entries| in `dropped`.
template <class Value, class Index>
[[nodiscard]] Merged cut(Entries<Value, Index> entries, const Blocks& blocks,
                         EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped,
                         MergeScratch& scratch);

/// A list cut at a known key: keeps entries with a larger key, and the first `equals` of those with
/// that key; drops other non-zeros. Room: |entries| in both outputs.
template <class Value, class Index>
[[nodiscard]] Merged cut(Entries<Value, Index> entries, Key<Value> key, std::size_t equals,
                         EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped);

/// The sum of two lists with nothing selected; sums of zero are kept, with either sign. Room:
/// |a| + |b|.
template <class Value, class Index>
[[nodiscard]] Merged unite(Entries<Value, Index> a, Entries<Value, Index> b,
                           EntriesOut<Value, Index> kept);

}  // namespace gtopk::sparse
