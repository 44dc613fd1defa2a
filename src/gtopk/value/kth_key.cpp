// Sparse, value: selection by brackets (Floyd and Rivest, 1975), with SIMD passes. A small sample
// brackets the k-th key; one pass counts the keys above and inside the bracket, and a second one
// keeps those inside; usually only one call of nth_element is then left. For 50,000 keys it takes a
// tenth of nth_element alone and a third of a radix histogram, whose increments wait for one
// another.
#include "src/gtopk/value/kth_key.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/gtopk/value/kth_key.cpp"
#include <hwy/foreach_target.h>

#include "src/gtopk/value/compact-inl.h"

#ifndef GTOPK_VALUE_KTH_KEY_BRACKET
#define GTOPK_VALUE_KTH_KEY_BRACKET
namespace gtopk::sparse {

template <class KeyType>
struct Bracket {
  KeyType low;
  KeyType high;
};

struct BracketCounts {
  std::size_t above = 0;
  std::size_t inside = 0;
};

}  // namespace gtopk::sparse
#endif

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {

// Keys have no sign bit, so the signed comparison, which every target has, orders them.
template <class KeyType>
HWY_INLINE BracketCounts count(const KeyType* keys, std::size_t size, Bracket<KeyType> bracket) {
  using Signed = hwy::MakeSigned<KeyType>;
  const hn::ScalableTag<Signed> d;
  const auto* from = reinterpret_cast<const Signed*>(keys);
  const std::size_t lanes = hn::Lanes(d);
  const auto high = hn::Set(d, static_cast<Signed>(bracket.high));
  const auto low = hn::Set(d, static_cast<Signed>(bracket.low));
  BracketCounts counts;
  std::size_t below = 0;
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto key = hn::LoadU(d, from + i);
    counts.above += hn::CountTrue(d, hn::Gt(key, high));
    below += hn::CountTrue(d, hn::Lt(key, low));
  }
  for (; i < size; ++i) {
    counts.above += keys[i] > bracket.high ? 1U : 0U;
    below += keys[i] < bracket.low ? 1U : 0U;
  }
  counts.inside = size - counts.above - below;
  return counts;
}

// This works in place, because stores never overtake loads.
template <class KeyType>
HWY_INLINE void keep_inside(KeyType* keys, std::size_t size, Bracket<KeyType> bracket) {
  using Signed = hwy::MakeSigned<KeyType>;
  const hn::ScalableTag<Signed> d;
  auto* from = reinterpret_cast<Signed*>(keys);
  const std::size_t lanes = hn::Lanes(d);
  const auto high = hn::Set(d, static_cast<Signed>(bracket.high));
  const auto low = hn::Set(d, static_cast<Signed>(bracket.low));
  std::size_t kept = 0;
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto key = hn::LoadU(d, from + i);
    const auto inside = hn::Not(hn::Or(hn::Gt(key, high), hn::Lt(key, low)));
    const std::size_t bits = bits_of(d, inside);
    store_packed(d, key, bits, from + kept);
    kept += hwy::PopCount(bits);
  }
  for (; i < size; ++i) {
    const KeyType key = keys[i];
    keys[kept] = key;
    kept += key >= bracket.low && key <= bracket.high ? 1U : 0U;
  }
}

// Highway's dispatch table takes no templates.
BracketCounts count_32(const std::uint32_t* keys, std::size_t size,
                       Bracket<std::uint32_t> bracket) {
  return count(keys, size, bracket);
}
BracketCounts count_64(const std::uint64_t* keys, std::size_t size,
                       Bracket<std::uint64_t> bracket) {
  return count(keys, size, bracket);
}
void keep_inside_32(std::uint32_t* keys, std::size_t size, Bracket<std::uint32_t> bracket) {
  keep_inside(keys, size, bracket);
}
void keep_inside_64(std::uint64_t* keys, std::size_t size, Bracket<std::uint64_t> bracket) {
  keep_inside(keys, size, bracket);
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::sparse {
namespace {

HWY_EXPORT(count_32);
HWY_EXPORT(count_64);
HWY_EXPORT(keep_inside_32);
HWY_EXPORT(keep_inside_64);

BracketCounts count_in(const std::uint32_t* keys, std::size_t size,
                       Bracket<std::uint32_t> bracket) {
  return HWY_DYNAMIC_DISPATCH(count_32)(keys, size, bracket);
}
BracketCounts count_in(const std::uint64_t* keys, std::size_t size,
                       Bracket<std::uint64_t> bracket) {
  return HWY_DYNAMIC_DISPATCH(count_64)(keys, size, bracket);
}
void narrow_to(std::uint32_t* keys, std::size_t size, Bracket<std::uint32_t> bracket) {
  HWY_DYNAMIC_DISPATCH(keep_inside_32)(keys, size, bracket);
}
void narrow_to(std::uint64_t* keys, std::size_t size, Bracket<std::uint64_t> bracket) {
  HWY_DYNAMIC_DISPATCH(keep_inside_64)(keys, size, bracket);
}

/// Sample size for a bracket.
constexpr std::size_t kSample = 256;

/// Returns a bracket of two standard deviations around the k-th of an evenly spaced sample.
template <class KeyType>
Bracket<KeyType> bracket_from_sample(const KeyType* keys, std::size_t size, std::size_t k) {
  std::array<KeyType, kSample> sample;
  for (std::size_t i = 0; i < kSample; ++i) {
    sample[i] = keys[i * (size / kSample)];
  }
  const double share = static_cast<double>(k) / static_cast<double>(size);
  const double middle = share * kSample;
  const double reach = 2 * std::sqrt(kSample * share * (1 - share)) + 1;
  const auto high = static_cast<std::ptrdiff_t>(std::floor(middle - reach));
  const auto low = static_cast<std::ptrdiff_t>(std::ceil(middle + reach));
  // If the bracket extends past an end of the sample, it is open on that side.
  Bracket<KeyType> bracket{.low = 0, .high = ~KeyType{0} >> 1U};
  auto from = sample.begin();
  if (high >= 0) {
    std::nth_element(from, from + high, sample.end(), std::greater<>());
    from += high;
    bracket.high = *from;
  }
  if (low < static_cast<std::ptrdiff_t>(kSample)) {
    std::nth_element(from, sample.begin() + low, sample.end(), std::greater<>());
    bracket.low = sample[low];
  }
  return bracket;
}

}  // namespace

template <class KeyType>
KthKey<KeyType> kth_largest(KeyType* keys, std::size_t size, std::size_t k) {
  constexpr std::size_t kFew = 2 * kSample;
  std::size_t larger = 0;  // number of keys larger than all in `keys`
  while (size > kFew) {
    Bracket<KeyType> bracket = bracket_from_sample(keys, size, k);
    const BracketCounts counts = count_in(keys, size, bracket);
    const bool holds = counts.above < k && k <= counts.above + counts.inside;
    if (holds && bracket.low == bracket.high) {
      return {.key = bracket.low, .larger = larger + counts.above, .equal = counts.inside};
    }
    if (!holds || counts.inside > size / 2) {
      break;  // the sample does not represent the keys
    }
    narrow_to(keys, size, bracket);
    larger += counts.above;
    k -= counts.above;
    size = counts.inside;
  }
  std::nth_element(keys, keys + (k - 1), keys + size, std::greater<>());
  const KeyType kth = keys[k - 1];
  // nth_element leaves keys at least as large before its position and at most as large behind it.
  const auto smaller =
      std::count_if(keys + k, keys + size, [kth](KeyType key) { return key < kth; });
  const auto above = std::count_if(keys, keys + (k - 1), [kth](KeyType key) { return key > kth; });
  return {.key = kth,
          .larger = larger + static_cast<std::size_t>(above),
          .equal = size - static_cast<std::size_t>(above + smaller)};
}

template KthKey<std::uint32_t> kth_largest(std::uint32_t*, std::size_t, std::size_t);
template KthKey<std::uint64_t> kth_largest(std::uint64_t*, std::size_t, std::size_t);

}  // namespace gtopk::sparse
#endif  // HWY_ONCE
