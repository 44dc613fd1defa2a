// Sparse, merge: the sum of two lists, cut at its k-th key, or each block at its own k-th key.
#include "src/gtopk/merge/merge.hpp"

#include <algorithm>
#include <cstdint>

#include "src/gtopk/merge/add_lists.hpp"
#include "src/gtopk/merge/split.hpp"
#include "src/gtopk/value/kth_key.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// Keeps the entries with a key larger than `key`, and entries with an equal key up to a position;
/// among these the lowest indices come first.
template <class Value>
struct Cut {
  Key<Value> key;
  std::size_t equals_end;
  std::size_t keeps;
};

template <class Value>
Cut<Value> find_cut(const Value* values, std::size_t size, std::size_t k, std::size_t non_zeros,
                    Key<Value>* keys) {
  if (non_zeros <= k) {
    return {.key = 1, .equals_end = size, .keeps = non_zeros};
  }
  if (k == 0) {
    return {.key = MagnitudeKey<Value>::kInfinity, .equals_end = 0, .keeps = 0};
  }
  const auto kth = kth_largest(keys, size, k);
  if (kth.larger + kth.equal == k) {  // there is almost never a tie at the cut
    return {.key = kth.key, .equals_end = size, .keeps = k};
  }
  std::size_t equals_left = k - kth.larger;
  std::size_t end = 0;
  while (equals_left > 0) {
    equals_left -= magnitude_key(values[end]) == kth.key ? 1U : 0U;
    ++end;
  }
  return {.key = kth.key, .equals_end = end, .keeps = k};
}

/// Keeps each block's first entries. `keys` has capacity for as many keys as there are entries.
template <class Value, class Index>
Merged keep_of_blocks(Entries<Value, Index> entries, const Blocks& blocks,
                      EntriesOut<Value, Index> kept, const EntriesOut<Value, Index>* dropped,
                      Key<Value>* keys) {
  // In the middle of a list, vectors may write past a block's entries; the next block overwrites
  // these.
  Division division{.keeps = std::min<std::size_t>(blocks.keep(), entries.size),
                    .drops = entries.size};
  for (std::size_t begin = 0; begin < entries.size;) {
    const std::uint64_t block = blocks.begin(entries.indices[begin]);
    const std::size_t most = std::min<std::size_t>(blocks.length(), entries.size - begin);
    const Index* const first = entries.indices + begin;
    const auto size = static_cast<std::size_t>(
        std::partition_point(first, first + most,
                             [&](Index index) { return index - block < blocks.length(); }) -
        first);
    const Value* const values = entries.values + begin;
    const KeyScan scan = scan_keys(values, size, keys);
    if (!scan.finite) {
      return {.kept = 0, .dropped = 0, .finite = false};
    }
    const Cut<Value> cut =
        find_cut(values, size, static_cast<std::size_t>(blocks.keeps(block)), scan.non_zeros, keys);
    divide(entries, begin + cut.equals_end, cut.key, kept, dropped, division);
    begin += size;
    divide(entries, begin, cut.key + 1, kept, dropped, division);
  }
  return {.kept = division.kept, .dropped = division.dropped, .finite = true};
}

/// Computes a + b in the scratch memory.
template <class Value, class Index>
Entries<Value, Index> sum_of(Entries<Value, Index> a, Entries<Value, Index> b,
                             MergeScratch& scratch) {
  const std::size_t capacity = a.size + b.size;
  auto* indices = scratch.indices.array<Index>(capacity);
  auto* values = scratch.values.array<Value>(capacity);
  return {indices, values, add_lists(a, b, EntriesOut<Value, Index>{indices, values})};
}

}  // namespace

template <class Value, class Index>
Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, std::size_t k,
             EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
             MergeScratch& scratch) {
  const KeepDenormals guard;
  const Entries<Value, Index> sum = sum_of(a, b, scratch);
  auto* keys = scratch.keys.array<Key<Value>>(a.size + b.size);  // grows only with the lists
  const KeyScan scan = scan_keys(sum.values, sum.size, keys);
  if (!scan.finite) {
    return {.kept = 0, .dropped = 0, .finite = false};
  }
  const Cut<Value> cut = find_cut(sum.values, sum.size, k, scan.non_zeros, keys);
  Division division{.keeps = cut.keeps, .drops = scan.non_zeros - cut.keeps};
  divide(sum, cut.equals_end, cut.key, kept, dropped, division);
  divide(sum, sum.size, cut.key + 1, kept, dropped, division);
  return {.kept = division.kept, .dropped = division.dropped, .finite = true};
}

template <class Value, class Index>
Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, const Blocks& blocks,
             EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
             MergeScratch& scratch) {
  const KeepDenormals guard;
  const Entries<Value, Index> sum = sum_of(a, b, scratch);
  auto* keys = scratch.keys.array<Key<Value>>(a.size + b.size);  // grows only with the lists
  return keep_of_blocks(sum, blocks, kept, dropped, keys);
}

template <class Value, class Index>
Merged cut(Entries<Value, Index> entries, const Blocks& blocks, EntriesOut<Value, Index> kept,
           EntriesOut<Value, Index> dropped, MergeScratch& scratch) {
  const KeepDenormals guard;
  return keep_of_blocks(entries, blocks, kept, &dropped,
                        scratch.keys.array<Key<Value>>(entries.size));
}

template <class Value, class Index>
Merged cut(Entries<Value, Index> entries, Key<Value> key, std::size_t equals,
           EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped) {
  Merged merged;
  for (std::size_t i = 0; i < entries.size; ++i) {
    const Key<Value> here = magnitude_key(entries.values[i]);
    const bool tied = here == key && equals > 0;
    const bool keep = here > key || tied;
    if (here == 0) {
      continue;
    }
    equals -= tied ? 1U : 0U;
    const EntriesOut<Value, Index>& side = keep ? kept : dropped;
    std::size_t& size = keep ? merged.kept : merged.dropped;
    side.indices[size] = entries.indices[i];
    side.values[size] = entries.values[i];
    ++size;
  }
  return merged;
}

template <class Value, class Index>
Merged unite(Entries<Value, Index> a, Entries<Value, Index> b, EntriesOut<Value, Index> kept) {
  const KeepDenormals guard;
  const std::size_t size = add_lists(a, b, kept);
  Key<Value> largest = 0;
  for (std::size_t i = 0; i < size; ++i) {
    largest = std::max(largest, magnitude_key(kept.values[i]));
  }
  if (!is_finite_key<Value>(largest)) {
    return {.kept = 0, .dropped = 0, .finite = false};
  }
  return {.kept = size, .dropped = 0, .finite = true};
}

#define GTOPK_INSTANTIATE(Value, Index)                                                         \
  template Merged merge(Entries<Value, Index>, Entries<Value, Index>, std::size_t,              \
                        EntriesOut<Value, Index>, EntriesOut<Value, Index>*, MergeScratch&);    \
  template Merged merge(Entries<Value, Index>, Entries<Value, Index>, const Blocks&,            \
                        EntriesOut<Value, Index>, EntriesOut<Value, Index>*, MergeScratch&);    \
  template Merged cut(Entries<Value, Index>, const Blocks&, EntriesOut<Value, Index>,           \
                      EntriesOut<Value, Index>, MergeScratch&);                                 \
  template Merged cut(Entries<Value, Index>, Key<Value>, std::size_t, EntriesOut<Value, Index>, \
                      EntriesOut<Value, Index>);                                                \
  template Merged unite(Entries<Value, Index>, Entries<Value, Index>, EntriesOut<Value, Index>);

GTOPK_INSTANTIATE(float, std::uint32_t)
GTOPK_INSTANTIATE(float, std::uint64_t)
GTOPK_INSTANTIATE(double, std::uint32_t)
GTOPK_INSTANTIATE(double, std::uint64_t)

#undef GTOPK_INSTANTIATE

}  // namespace gtopk::sparse
