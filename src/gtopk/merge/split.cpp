// Sparse, merge: the SIMD passes, compiled once per target and chosen at run time.
#include "src/gtopk/merge/split.hpp"

#include <cstdint>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/gtopk/merge/split.cpp"
#include <hwy/foreach_target.h>

#include "src/gtopk/value/compact-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {

// Keys have no sign bit, so they can be ordered by the signed comparison, which every target has.
template <class Value>
HWY_INLINE KeyScan scan(const Value* values, std::size_t size, Key<Value>* keys) {
  using Signed = hwy::MakeSigned<Value>;
  const hn::ScalableTag<Value> d;
  const hn::RebindToSigned<decltype(d)> d_bits;
  const std::size_t lanes = hn::Lanes(d);
  const auto signless = hn::Set(d_bits, static_cast<Signed>(MagnitudeKey<Value>::kSignless));
  const auto largest = hn::Set(d_bits, static_cast<Signed>(MagnitudeKey<Value>::kInfinity - 1));
  std::size_t zeros = 0;
  std::size_t wrong = 0;
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto key = hn::And(hn::BitCast(d_bits, hn::LoadU(d, values + i)), signless);
    zeros += hn::CountTrue(d_bits, hn::Eq(key, hn::Zero(d_bits)));
    wrong += hn::CountTrue(d_bits, hn::Gt(key, largest));
    hn::StoreU(key, d_bits, reinterpret_cast<Signed*>(keys + i));
  }
  for (; i < size; ++i) {
    const Key<Value> key = magnitude_key(values[i]);
    zeros += key == 0 ? 1U : 0U;
    wrong += is_finite_key<Value>(key) ? 0U : 1U;
    keys[i] = key;
  }
  return {.non_zeros = size - zeros, .finite = wrong == 0};
}

// Processes whole vectors while both sides have capacity for one.
template <class Value>
HWY_INLINE void divide_vectors(Entries<Value, Key<Value>> entries, std::size_t end,
                               Key<Value> threshold, EntriesOut<Value, Key<Value>> kept,
                               const EntriesOut<Value, Key<Value>>* dropped, Division& division) {
  using Signed = hwy::MakeSigned<Value>;
  const hn::ScalableTag<Value> d;
  const hn::RebindToSigned<decltype(d)> d_bits;
  const hn::RebindToUnsigned<decltype(d)> d_indices;
  const std::size_t lanes = hn::Lanes(d);
  const auto signless = hn::Set(d_bits, static_cast<Signed>(MagnitudeKey<Value>::kSignless));
  const auto below = hn::Set(d_bits, static_cast<Signed>(threshold - 1));
  Division at = division;
  while (at.next + lanes <= end && at.kept + lanes <= at.keeps &&
         (dropped == nullptr || at.dropped + lanes <= at.drops)) {
    const auto value = hn::LoadU(d, entries.values + at.next);
    const auto index = hn::LoadU(d_indices, entries.indices + at.next);
    const auto key = hn::And(hn::BitCast(d_bits, value), signless);
    const std::size_t keep = bits_of(d_bits, hn::Gt(key, below));
    const std::size_t drop = bits_of(d_bits, hn::Gt(key, hn::Zero(d_bits))) & ~keep;
    store_packed(d, value, keep, kept.values + at.kept);
    store_packed(d_indices, index, keep, kept.indices + at.kept);
    if (dropped != nullptr) {
      store_packed(d, value, drop, dropped->values + at.dropped);
      store_packed(d_indices, index, drop, dropped->indices + at.dropped);
    }
    at.kept += hwy::PopCount(keep);
    at.dropped += hwy::PopCount(drop);
    at.next += lanes;
  }
  division = at;
}

// Highway's dispatch table takes no templates.
KeyScan scan_float(const float* values, std::size_t size, std::uint32_t* keys) {
  return scan(values, size, keys);
}
KeyScan scan_double(const double* values, std::size_t size, std::uint64_t* keys) {
  return scan(values, size, keys);
}
void divide_float(Entries<float, std::uint32_t> entries, std::size_t end, std::uint32_t threshold,
                  EntriesOut<float, std::uint32_t> kept,
                  const EntriesOut<float, std::uint32_t>* dropped, Division& division) {
  divide_vectors(entries, end, threshold, kept, dropped, division);
}
void divide_double(Entries<double, std::uint64_t> entries, std::size_t end, std::uint64_t threshold,
                   EntriesOut<double, std::uint64_t> kept,
                   const EntriesOut<double, std::uint64_t>* dropped, Division& division) {
  divide_vectors(entries, end, threshold, kept, dropped, division);
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::sparse {

HWY_EXPORT(scan_float);
HWY_EXPORT(scan_double);
HWY_EXPORT(divide_float);
HWY_EXPORT(divide_double);

template <>
KeyScan scan_keys(const float* values, std::size_t size, std::uint32_t* keys) {
  return HWY_DYNAMIC_DISPATCH(scan_float)(values, size, keys);
}

template <>
KeyScan scan_keys(const double* values, std::size_t size, std::uint64_t* keys) {
  return HWY_DYNAMIC_DISPATCH(scan_double)(values, size, keys);
}

template <class Value, class Index>
void divide(Entries<Value, Index> entries, std::size_t end, Key<Value> threshold,
            EntriesOut<Value, Index> kept, const EntriesOut<Value, Index>* dropped,
            Division& division) {
  // SIMD compaction needs indices and values of the same width; other types are rare (float with
  // more than 2^32 elements), or their merge is cheap relative to their exchange (double).
  if constexpr (std::is_same_v<Value, float> && std::is_same_v<Index, std::uint32_t>) {
    HWY_DYNAMIC_DISPATCH(divide_float)(entries, end, threshold, kept, dropped, division);
  } else if constexpr (std::is_same_v<Value, double> && std::is_same_v<Index, std::uint64_t>) {
    HWY_DYNAMIC_DISPATCH(divide_double)(entries, end, threshold, kept, dropped, division);
  }
  // Every entry is written to both sides while both have capacity; everything after that belongs to
  // one side, except zeros.
  Division at = division;
  const bool wanted = dropped != nullptr;
  for (; at.next < end; ++at.next) {
    const Index index = entries.indices[at.next];
    const Value value = entries.values[at.next];
    const Key<Value> key = magnitude_key(value);
    const bool keep = key >= threshold;
    if (at.kept < at.keeps) {
      kept.indices[at.kept] = index;
      kept.values[at.kept] = value;
    }
    if (wanted && at.dropped < at.drops) {
      dropped->indices[at.dropped] = index;
      dropped->values[at.dropped] = value;
    }
    at.kept += keep ? 1U : 0U;
    at.dropped += !keep && key != 0 ? 1U : 0U;
  }
  division = at;
}

template void divide(Entries<float, std::uint32_t>, std::size_t, std::uint32_t,
                     EntriesOut<float, std::uint32_t>, const EntriesOut<float, std::uint32_t>*,
                     Division&);
template void divide(Entries<float, std::uint64_t>, std::size_t, std::uint32_t,
                     EntriesOut<float, std::uint64_t>, const EntriesOut<float, std::uint64_t>*,
                     Division&);
template void divide(Entries<double, std::uint32_t>, std::size_t, std::uint64_t,
                     EntriesOut<double, std::uint32_t>, const EntriesOut<double, std::uint32_t>*,
                     Division&);
template void divide(Entries<double, std::uint64_t>, std::size_t, std::uint64_t,
                     EntriesOut<double, std::uint64_t>, const EntriesOut<double, std::uint64_t>*,
                     Division&);

}  // namespace gtopk::sparse
#endif  // HWY_ONCE
