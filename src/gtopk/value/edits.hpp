// Sparse, value: the entries that a commit applies to residual and tensor after its sweep, if the
// sweep does not apply them itself. They are only views, and do not know the commit.
#pragma once

#include "gtopk/detached.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

/// The edits, applied in this order.
template <class Value, class Index>
struct Edits {
  /// Indices, ascending, at which residual and momentum become 0.
  Index* cleared = nullptr;
  /// Entries, ascending, that are added to the residual in this order. An index occurs once for
  /// each value that is returned to it.
  EntriesOut<Value, Index> returned;
  /// Entries, ascending, that are written to the tensor after division and rounding.
  EntriesOut<Value, Index> delivered;
};

}  // namespace gtopk::sparse
