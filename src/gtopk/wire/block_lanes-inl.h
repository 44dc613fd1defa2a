// Sparse, wire: vectors for blocks of float32, and the largest magnitude of one. Compiled once
// per SIMD target (Highway's foreach_target), hence the odd include guard.
#if defined(GTOPK_WIRE_BLOCK_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GTOPK_WIRE_BLOCK_LANES_INL_H_
#undef GTOPK_WIRE_BLOCK_LANES_INL_H_
#else
#define GTOPK_WIRE_BLOCK_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "src/gtopk/value/selection_order.hpp"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Vectors of bytes, and of as many bits: a block of 64 bytes has a whole number of them.
using Int8s = hn::CappedTag<std::int8_t, 32>;
using Bytes = hn::RebindToUnsigned<Int8s>;
using Int16s = hn::RepartitionToWide<Int8s>;
using Int32s = hn::RepartitionToWide<Int16s>;
using Floats = hn::RebindToFloat<Int32s>;
/// As many bytes as there are floats in a vector.
using FewInt8s = hn::Rebind<std::int8_t, Floats>;

/// The largest magnitude's key, as in block_formats.hpp.
HWY_INLINE std::uint32_t largest_key_of(const float* values, std::size_t count) {
  const Floats df;
  const Int32s di;
  const auto signless = hn::Set(di, static_cast<std::int32_t>(MagnitudeKey<float>::kSignless));
  auto largest = hn::Zero(di);
  for (std::size_t i = 0; i < count; i += hn::Lanes(df)) {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::LoadU(df, values + i)), signless));
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per-target include guard
