// Sparse, residual: the lists that decide what a step leaves behind on one rank.
#pragma once

#include <span>

#include "gtopk/types.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
struct StepLists {
  /// The entries that this rank selected.
  Entries<Value, Index> own;
  /// The entries that are delivered, the same on every rank.
  Entries<Value, Index> result;
  /// The entries that were selected and dropped on the way, list after list.
  std::span<const Entries<Value, Index>> dropped{};
  /// The residuals to which dropped entries go.
  PutBack put_back = PutBack::kOwn;
};

}  // namespace gtopk::sparse
