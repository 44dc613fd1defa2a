// Sparse, merge: how many ranks are in the entries of a list that was made from two others. It
// ignores values: whatever happened to them, an entry has the ranks that its index had in both
// lists.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gtopk::sparse {

/// The indices of a list, and the number of ranks in each of its entries; null means one each.
template <class Index>
struct Counted {
  const Index* indices = nullptr;
  const std::uint32_t* counts = nullptr;
  std::size_t size = 0;
};

/// Sets sums[i] to the number of ranks in the entries of indices[i] in both lists, which may also
/// have other indices.
template <class Index>
void add_counts(const Index* indices, std::size_t size, Counted<Index> a, Counted<Index> b,
                std::uint32_t* sums) {
  const auto take = [](const Counted<Index>& list, std::size_t& at, Index index) -> std::uint32_t {
    while (at < list.size && list.indices[at] < index) {
      ++at;
    }
    if (at == list.size || list.indices[at] != index) {
      return 0;
    }
    const std::size_t here = at++;
    return list.counts == nullptr ? 1 : list.counts[here];
  };
  std::size_t next_of_a = 0;
  std::size_t next_of_b = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint32_t of_a = take(a, next_of_a, indices[i]);
    sums[i] = of_a + take(b, next_of_b, indices[i]);
  }
}

}  // namespace gtopk::sparse
