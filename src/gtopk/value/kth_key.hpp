// Sparse, value: the k-th largest of a list of magnitude keys, the cutoff of both select and merge.
// It does not know entries or indices.
#pragma once

#include <cstddef>

namespace gtopk::sparse {

template <class KeyType>
struct KthKey {
  KeyType key = 0;
  std::size_t larger = 0;  ///< how many are strictly larger; fewer than k
  std::size_t equal = 0;   ///< how many have that key; larger + equal is at least k
};

/// Finds the k-th largest (k >= 1) of `keys[0, size)`, size >= k; the keys have no sign bit. The
/// contents of `keys` are undefined afterwards.
template <class KeyType>
[[nodiscard]] KthKey<KeyType> kth_largest(KeyType* keys, std::size_t size, std::size_t k);

}  // namespace gtopk::sparse
