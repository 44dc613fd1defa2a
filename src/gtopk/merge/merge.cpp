// Sparse, merge room: union of two sorted lists, cut at the k-th key, split in one stable pass. Every
// loop is branch-free where the data would decide: indices of two ranks interleave at random, and a
// mispredicted branch per entry costs more than all the arithmetic.
#include "gtopk/merge/merge.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gtopk/value/keep_denormals.hpp"
#include "gtopk/value/kth_key.hpp"
#include "gtopk/value/selection_order.hpp"

namespace gtopk::sparse {
namespace {

template <class Value>
[[nodiscard]] Value value_if(bool wanted, Value value) {
  Key<Value> bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= Key<Value>{0} - static_cast<Key<Value>>(wanted);
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

/// Adds a zero where an entry has no partner, on every path: -0 becomes +0 wherever it stands.
template <class Value, class Index>
std::size_t add_lists(Entries<Value, Index> a, Entries<Value, Index> b,
                      EntriesOut<Value, Index> sum) {
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t size = 0;
  while (i < a.size && j < b.size) {
    const Index index_a = a.indices[i];
    const Index index_b = b.indices[j];
    const bool has_a = index_a <= index_b;
    const bool has_b = index_b <= index_a;
    sum.indices[size] = has_a ? index_a : index_b;
    sum.values[size] = value_if(has_a, a.values[i]) + value_if(has_b, b.values[j]);
    i += has_a ? 1U : 0U;
    j += has_b ? 1U : 0U;
    ++size;
  }
  for (; i < a.size; ++i, ++size) {
    sum.indices[size] = a.indices[i];
    sum.values[size] = a.values[i] + 0;
  }
  for (; j < b.size; ++j, ++size) {
    sum.indices[size] = b.indices[j];
    sum.values[size] = b.values[j] + 0;
  }
  return size;
}

/// The least key that is kept, and how many of those that have it, lowest indices first.
template <class Value>
struct Cut {
  Key<Value> key = 1;
  std::size_t equals = 0;
  std::size_t larger = 0;
  std::size_t non_zeros = 0;
  bool finite = true;
};

template <class Value>
Cut<Value> find_cut(const Value* values, std::size_t size, std::size_t k, Key<Value>* keys) {
  Cut<Value> cut;
  Key<Value> largest = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const Key<Value> key = magnitude_key(values[i]);
    keys[i] = key;
    largest = std::max(largest, key);
    cut.non_zeros += key != 0 ? 1U : 0U;
  }
  cut.finite = is_finite_key<Value>(largest);
  if (!cut.finite) {
    return cut;
  }
  if (cut.non_zeros <= k) {
    cut.larger = cut.non_zeros;
    cut.key = 0;
    return cut;
  }
  cut.key = k == 0 ? largest : kth_largest(keys, size, k);
  for (std::size_t i = 0; i < size; ++i) {
    cut.larger += magnitude_key(values[i]) > cut.key ? 1U : 0U;
  }
  cut.equals = k - cut.larger;
  return cut;
}

}  // namespace

template <class Value, class Index>
Merged merge(Entries<Value, Index> a, Entries<Value, Index> b, std::size_t k,
             EntriesOut<Value, Index> kept, EntriesOut<Value, Index>* dropped,
             MergeScratch& scratch) {
  const KeepDenormals guard;
  const std::size_t room = a.size + b.size;
  const EntriesOut<Value, Index> sum{scratch.indices.room<Index>(room),
                                     scratch.values.room<Value>(room)};
  const std::size_t size = add_lists(a, b, sum);
  const Cut<Value> cut =
      find_cut(sum.values, size, k, scratch.keys.template room<Key<Value>>(room));
  if (!cut.finite) {
    return {.kept = 0, .dropped = 0, .finite = false};
  }
  const std::size_t keeps = cut.larger + cut.equals;
  const std::size_t drops = cut.non_zeros - keeps;

  // Stores go to both outputs at every entry, and each output has room for one entry more than
  // was counted into it until it is full; then the rest is all of the other kind.
  std::size_t kept_size = 0;
  std::size_t dropped_size = 0;
  std::size_t equals_left = cut.equals;
  std::size_t i = 0;
  for (; kept_size < keeps; ++i) {
    const Key<Value> key = magnitude_key(sum.values[i]);
    const bool equal_first = key == cut.key && equals_left > 0;
    const bool keep = key > cut.key || equal_first;
    kept.indices[kept_size] = sum.indices[i];
    kept.values[kept_size] = sum.values[i];
    kept_size += keep ? 1U : 0U;
    equals_left -= equal_first ? 1U : 0U;
    if (dropped != nullptr) {
      dropped->indices[dropped_size] = sum.indices[i];
      dropped->values[dropped_size] = sum.values[i];
      dropped_size += !keep && key != 0 ? 1U : 0U;
    }
  }
  if (dropped != nullptr) {
    for (; dropped_size < drops; ++i) {
      dropped->indices[dropped_size] = sum.indices[i];
      dropped->values[dropped_size] = sum.values[i];
      dropped_size += magnitude_key(sum.values[i]) != 0 ? 1U : 0U;
    }
  }
  return {.kept = keeps, .dropped = drops, .finite = true};
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
  template Merged unite(Entries<Value, Index>, Entries<Value, Index>, EntriesOut<Value, Index>);

GTOPK_INSTANTIATE(float, std::uint32_t)
GTOPK_INSTANTIATE(float, std::uint64_t)
GTOPK_INSTANTIATE(double, std::uint32_t)
GTOPK_INSTANTIATE(double, std::uint64_t)

#undef GTOPK_INSTANTIATE

}  // namespace gtopk::sparse
