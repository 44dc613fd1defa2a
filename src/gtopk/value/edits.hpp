// Sparse, value room: the entries that are applied to residual and tensor behind the sweep of a
// commit, where these are apart. Views only. It knows no commit.
#pragma once

#include "gtopk/detached.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

/// Applied in this order.
template <class Value, class Index>
struct Edits {
  /// Ascending: residual and momentum become 0.
  Index* cleared = nullptr;
  /// Ascending, an index as often as something comes back to it, in that order: added.
  EntriesOut<Value, Index> returned;
  /// Ascending: the tensor's, divided and rounded.
  EntriesOut<Value, Index> delivered;
};

}  // namespace gtopk::sparse
