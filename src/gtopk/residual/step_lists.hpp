// Sparse, residual: the lists that decide what a step leaves behind on one rank.
#pragma once

#include <span>

#include "gtopk/types.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
struct StepLists {
  /// What this rank selected.
  Entries<Value, Index> own;
  /// What is delivered, the same on every rank.
  Entries<Value, Index> result;
  /// What was selected and dropped on the way, list after list.
  std::span<const Entries<Value, Index>> dropped{};
  /// Where dropped entries go.
  PutBack put_back = PutBack::kOwn;
};

}  // namespace gtopk::sparse
