// Sparse, merge: the SIMD passes over a list of entries: computing its keys, and splitting it at a
// key. Their SIMD form is chosen at run time. They do not know k.
#pragma once

#include <cstddef>

#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"

namespace gtopk::sparse {

struct KeyScan {
  std::size_t non_zeros = 0;
  bool finite = true;
};

/// Computes keys[i] <- magnitude_key(values[i]).
template <class Value>
[[nodiscard]] KeyScan scan_keys(const Value* values, std::size_t size, Key<Value>* keys);

/// The progress of a division, and the number of entries that each side will have at the end.
struct Division {
  std::size_t next = 0;
  std::size_t kept = 0;
  std::size_t dropped = 0;
  std::size_t keeps = 0;
  std::size_t drops = 0;
};

/// Moves entries [division.next, end) with a key of at least `threshold` to `kept`, and other
/// nonzero entries to `dropped` (nowhere if it is null). Nothing is written past `keeps` and
/// `drops`.
template <class Value, class Index>
void divide(Entries<Value, Index> entries, std::size_t end, Key<Value> threshold,
            EntriesOut<Value, Index> kept, const EntriesOut<Value, Index>* dropped,
            Division& division);

}  // namespace gtopk::sparse
