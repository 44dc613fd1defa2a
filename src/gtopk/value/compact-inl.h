// Sparse, value: left-packs the lanes of a SIMD vector that a mask picks. Compiled once per
// SIMD target (Highway's foreach_target), hence the odd include guard.
//
// Highway 1.0.3 has Compress, but its tables are local constants, which g++ copies to the stack at
// every call (1 to 2 kB: a merge took three times as long). This table is static.
#if defined(GTOPK_VALUE_COMPACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GTOPK_VALUE_COMPACT_INL_H_
#undef GTOPK_VALUE_COMPACT_INL_H_
#else
#define GTOPK_VALUE_COMPACT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "src/gtopk/value/compact_table.hpp"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// One bit per lane; at most 8 lanes, which holds for vectors of up to 256 bits.
template <class D, class Mask>
HWY_INLINE std::size_t bits_of(D d, Mask mask) {
  static_assert(hn::MaxLanes(D()) <= 8, "wider vectors want a native Compress");
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(d, mask, bits);
  return bits[0];
}

/// Stores the picked lanes side by side at `to`, which has capacity for a whole vector.
template <class D>
HWY_INLINE void store_packed(D d, hn::Vec<D> vector, std::size_t bits, hn::TFromD<D>* to) {
#if HWY_TARGET == HWY_SCALAR
  (void)bits;
  hn::StoreU(vector, d, to);
#else
  const hn::RebindToUnsigned<D> d_order;
  const auto order =
      hn::LoadU(d_order, PackingOrders<hn::TFromD<decltype(d_order)>>::kTable.at(bits));
  hn::StoreU(hn::TableLookupLanes(vector, hn::IndicesFromVec(d, order)), d, to);
#endif
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
