// Sparse, value: chooses one of two values without a branch, which would be mispredicted for
// every other entry. It does not know lists.
#pragma once

#include <bit>
#include <cstdint>

#include "src/gtopk/value/selection_order.hpp"

namespace gtopk::sparse {

/// Returns `one` if `wanted` is 1, and `other` if it is 0.
template <class Value>
[[nodiscard]] Value chosen(std::uint64_t wanted, Value one, Value other) {
  const Key<Value> mask = Key<Value>{0} - static_cast<Key<Value>>(wanted);
  return std::bit_cast<Value>((std::bit_cast<Key<Value>>(one) & mask) |
                              (std::bit_cast<Key<Value>>(other) & ~mask));
}

}  // namespace gtopk::sparse
