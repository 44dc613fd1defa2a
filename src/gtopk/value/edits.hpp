// Sparse, value: the entries that a commit applies to residual and tensor after its sweep, if
// the sweep does not apply them itself. Views only. It knows no commit.
#pragma once

#include "gtopk/detached.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

/// The edits, applied in this order.
template <class Value, class Index>
struct Edits {
  /// Ascending; residual and momentum become 0 there.
  Index* cleared = nullptr;
  /// Ascending, with an index as often as something comes back to it; added to the residual in this
  /// order.
  EntriesOut<Value, Index> returned;
  /// Ascending; written to the tensor, after division and rounding.
  EntriesOut<Value, Index> delivered;
};

}  // namespace gtopk::sparse
