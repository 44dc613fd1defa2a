// Sparse, value room: loads a SIMD vector of a tensor's elements in the accumulation type. Compiled
// once per SIMD target (Highway's foreach_target), hence the odd include guard. The half types are
// widened on integers, exactly as value/half.hpp does: subnormal halves become normal floats
// without touching a denormal, which some CPUs take 100 cycles for. It knows no selection.
#if defined(GTOPK_VALUE_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GTOPK_VALUE_LOAD_INL_H_
#undef GTOPK_VALUE_LOAD_INL_H_
#else
#define GTOPK_VALUE_LOAD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "src/numbers/half.hpp"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const double* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const Bfloat16* from) {
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits =
      hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const Float16* from) {
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::PromoteTo(di, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFF));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
  const auto rebase = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7BFF)),
                                     hn::Set(di, 0x70000000), hn::Set(di, 0x38000000));
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebase);
  const auto subnormal =
      hn::BitCast(di, hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-24F)));
  const auto wide = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x400)), subnormal, normal);
  return hn::BitCast(d, hn::Or(wide, sign));
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
