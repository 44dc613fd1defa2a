// Numbers: SIMD vectors of a tensor's elements in the accumulation type: loaded, and stored with
// one rounding. Compiled once per SIMD target (Highway's foreach_target), hence the odd include
// guard. The half types are converted to the bit as half.hpp does, by F16C or on integers:
// subnormal halves become normal floats without touching a denormal, which some CPUs take 100
// cycles for.
#if defined(GTOPK_NUMBERS_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GTOPK_NUMBERS_WIDE_INL_H_
#undef GTOPK_NUMBERS_WIDE_INL_H_
#else
#define GTOPK_NUMBERS_WIDE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "src/numbers/half.hpp"

HWY_BEFORE_NAMESPACE();
namespace gtopk::HWY_NAMESPACE {
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
HWY_INLINE void store_narrow(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}

template <class D>
HWY_INLINE void store_narrow(D d, hn::Vec<D> value, double* to) {
  hn::StoreU(value, d, to);
}

template <class D>
HWY_INLINE void store_narrow(D /*d*/, hn::Vec<D> value, Bfloat16* to) {
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF))));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(value));
  const auto halves = hn::IfThenElse(nan, hn::Or(upper, hn::Set(d32, 0x40)), rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, halves)), d16, reinterpret_cast<std::uint16_t*>(to));
}

// F16C comes with AVX2. It makes a NaN quiet on the way in, and keeps a payload on the way out.
#if HWY_TARGET == HWY_AVX2

template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const Float16* from) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

template <class D>
HWY_INLINE void store_narrow(D d, hn::Vec<D> value, Float16* to) {
  const hn::Rebind<hwy::float16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto nan = hn::CopySign(hn::BitCast(d, hn::Set(d32, 0x7FC00000)), value);
  const auto known = hn::IfThenElse(hn::IsNaN(value), nan, value);
  hn::StoreU(hn::DemoteTo(d16, known), d16, reinterpret_cast<hwy::float16_t*>(to));
}

#else

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

template <class D>
HWY_INLINE void store_narrow(D d, hn::Vec<D> value, Float16* to) {
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::BitCast(di, value);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto rebased = hn::Add(magnitude, hn::Set(di, 0xFFF - 0x38000000));
  const auto normal = hn::ShiftRight<13>(hn::Add(rebased, odd));
  // Below 2^-14 the addition rounds: a unit in the last place of 1/2 is 2^-24.
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x3F000000));
  const auto finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), subnormal, normal);
  const auto infinite = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7F800000)),
                                       hn::Set(di, 0x7E00), hn::Set(di, 0x7C00));
  const auto halves = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x47800000)), finite, infinite);
  hn::StoreU(hn::DemoteTo(d16, hn::Or(halves, sign)), d16, reinterpret_cast<std::uint16_t*>(to));
}

#endif

}  // namespace gtopk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
