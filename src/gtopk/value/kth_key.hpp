// Sparse, value room: the k-th largest of a list of magnitude keys, where select and merge both cut.
// It knows no entries and no indices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>

namespace gtopk::sparse {

/// The k-th largest (k >= 1) of `keys[0, size)`, size >= k. Destroys the order of `keys`, and may
/// overwrite them.
///
/// Bins are cut over the range that is really there, not over all bits: keys are bits of floats, close to
/// logarithms, and the candidates of one selection span a handful of exponents, so one pass leaves
/// only some keys per bin where fixed bins of the top bits would leave thousands. All-equal keys end
/// at the first pass. (nth_element alone took four times as long at 50,000 keys.)
template <class KeyType>
[[nodiscard]] KeyType kth_largest(KeyType* keys, std::size_t size, std::size_t k) {
  constexpr std::size_t kBins = 1024;
  constexpr std::size_t kFew = 64;
  while (size > kFew) {
    KeyType low = keys[0];
    KeyType high = keys[0];
    for (std::size_t i = 1; i < size; ++i) {
      low = std::min(low, keys[i]);
      high = std::max(high, keys[i]);
    }
    if (low == high) {
      return low;
    }
    unsigned shift = 0;
    while (((high - low) >> shift) >= kBins) {
      ++shift;
    }
    std::array<std::size_t, kBins> counts{};
    for (std::size_t i = 0; i < size; ++i) {
      ++counts[(keys[i] - low) >> shift];
    }
    std::size_t bin = (high - low) >> shift;
    while (counts[bin] < k) {
      k -= counts[bin];
      --bin;
    }
    std::size_t inside = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const KeyType key = keys[i];
      keys[inside] = key;
      inside += ((key - low) >> shift) == bin ? 1U : 0U;
    }
    size = inside;
  }
  std::nth_element(keys, keys + (k - 1), keys + size, std::greater<>());
  return keys[k - 1];
}

}  // namespace gtopk::sparse
