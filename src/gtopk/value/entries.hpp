// Sparse, value: a list of entries (index, value) as two arrays, sorted by index, each index at
// most once. The lists are views; whoever made the arrays owns them. They do not know algorithms.
#pragma once

#include <cstddef>

namespace gtopk::sparse {

/// A list to read. Index is uint32_t, or uint64_t if d >= 2^32; Value is float or double.
template <class Value, class Index>
struct Entries {
  const Index* indices = nullptr;
  const Value* values = nullptr;
  std::size_t size = 0;
};

/// A list to write. Each function says what capacity it needs. It must not overlap the lists that
/// are read.
template <class Value, class Index>
struct EntriesOut {
  Index* indices = nullptr;
  Value* values = nullptr;
};

}  // namespace gtopk::sparse
