// Sparse, select: the SIMD sweep, compiled once per target and chosen at run time. It has one
// addition per element and integer comparisons, so every target gives the same bits.
#include "src/gtopk/select/sweep.hpp"

#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/gtopk/select/sweep.cpp"
#include <hwy/foreach_target.h>

#include "src/gtopk/value/compact-inl.h"
#include "src/numbers/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using gtopk::HWY_NAMESPACE::load_wide;

template <class T, bool HasResidual>
class Sweep {
 public:
  using Value = Accumulation<T>;

  Sweep(Key<Value> threshold, StretchCandidates<Value>& found) : found_(found) {
    threshold_less_one_ = static_cast<hwy::MakeSigned<Value>>(threshold - 1);
  }

  HWY_INLINE std::size_t run(const T* gradient, const Value* residual, std::size_t count) {
    const std::size_t lanes = hn::Lanes(kValues);
    std::size_t i = 0;
    for (; i + 4 * lanes <= count; i += 4 * lanes) {
      const auto acc0 = load(gradient, residual, i);
      const auto acc1 = load(gradient, residual, i + lanes);
      const auto acc2 = load(gradient, residual, i + 2 * lanes);
      const auto acc3 = load(gradient, residual, i + 3 * lanes);
      const auto large0 = large(acc0);
      const auto large1 = large(acc1);
      const auto large2 = large(acc2);
      const auto large3 = large(acc3);
      const auto any = hn::Or(hn::Or(large0, large1), hn::Or(large2, large3));
      if (HWY_UNLIKELY(!hn::AllFalse(kBits, any))) {
        keep(acc0, large0, i);
        keep(acc1, large1, i + lanes);
        keep(acc2, large2, i + 2 * lanes);
        keep(acc3, large3, i + 3 * lanes);
      }
    }
    for (; i < count; i += lanes) {
      if (count - i >= lanes) {
        const auto acc = load(gradient, residual, i);
        keep(acc, large(acc), i);
      } else {
        const auto acc = load_part(gradient, residual, i, count - i);
        keep(acc, large(acc), i);
      }
    }
    return size_;
  }

 private:
  static constexpr hn::ScalableTag<Value> kValues{};
  static constexpr hn::RebindToSigned<hn::ScalableTag<Value>> kBits{};
  static constexpr hn::RebindToUnsigned<hn::ScalableTag<Value>> kOffsets{};
  using Vector = hn::Vec<hn::ScalableTag<Value>>;
  using Mask = hn::Mask<hn::RebindToSigned<hn::ScalableTag<Value>>>;

  HWY_INLINE Vector load(const T* gradient, const Value* residual, std::size_t at) const {
    const auto wide = load_wide(kValues, gradient + at);
    if constexpr (HasResidual) {
      return hn::Add(wide, hn::LoadU(kValues, residual + at));
    } else {
      return wide;
    }
  }

  // Loads the last elements, padded with zeros, which are never large.
  HWY_INLINE Vector load_part(const T* gradient, const Value* residual, std::size_t at,
                              std::size_t count) const {
    HWY_ALIGN T gradient_part[hn::MaxLanes(kValues)] = {};
    HWY_ALIGN Value residual_part[hn::MaxLanes(kValues)] = {};
    for (std::size_t i = 0; i < count; ++i) {
      gradient_part[i] = gradient[at + i];
      if constexpr (HasResidual) {
        residual_part[i] = residual[at + i];
      }
    }
    return load(gradient_part, residual_part, 0);
  }

  // Keys have no sign bit, so they can be ordered by the signed comparison, which every target has.
  HWY_INLINE Mask large(Vector acc) const {
    constexpr auto kSignless = static_cast<hwy::MakeSigned<Value>>(MagnitudeKey<Value>::kSignless);
    return hn::Gt(hn::And(hn::BitCast(kBits, acc), hn::Set(kBits, kSignless)),
                  hn::Set(kBits, threshold_less_one_));
  }

  HWY_INLINE void keep(Vector acc, Mask mask, std::size_t at) {
    const std::size_t bits = bits_of(kBits, mask);
    // Iota of a variable goes through memory lane by lane, which takes four times as long as
    // everything else.
    const auto offsets =
        hn::Add(hn::Iota(kOffsets, 0), hn::Set(kOffsets, static_cast<Key<Value>>(at)));
    store_packed(kValues, acc, bits, found_.values + size_);
    store_packed(kOffsets, offsets, bits, found_.offsets + size_);
    size_ += hwy::PopCount(bits);
  }

  StretchCandidates<Value>& found_;
  hwy::MakeSigned<Value> threshold_less_one_;
  std::size_t size_ = 0;
};

template <class T>
HWY_INLINE std::size_t sweep(const T* gradient, const Accumulation<T>* residual, std::size_t count,
                             Key<Accumulation<T>> threshold,
                             StretchCandidates<Accumulation<T>>& found) {
  if (residual == nullptr) {
    return Sweep<T, false>(threshold, found).run(gradient, residual, count);
  }
  return Sweep<T, true>(threshold, found).run(gradient, residual, count);
}

// Highway's dispatch table takes no templates.
std::size_t sweep_float(const float* gradient, const float* residual, std::size_t count,
                        Key<float> threshold, StretchCandidates<float>& found) {
  return sweep(gradient, residual, count, threshold, found);
}

std::size_t sweep_double(const double* gradient, const double* residual, std::size_t count,
                         Key<double> threshold, StretchCandidates<double>& found) {
  return sweep(gradient, residual, count, threshold, found);
}

std::size_t sweep_bfloat16(const Bfloat16* gradient, const float* residual, std::size_t count,
                           Key<float> threshold, StretchCandidates<float>& found) {
  return sweep(gradient, residual, count, threshold, found);
}

std::size_t sweep_float16(const Float16* gradient, const float* residual, std::size_t count,
                          Key<float> threshold, StretchCandidates<float>& found) {
  return sweep(gradient, residual, count, threshold, found);
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::sparse {

HWY_EXPORT(sweep_float);
HWY_EXPORT(sweep_double);
HWY_EXPORT(sweep_bfloat16);
HWY_EXPORT(sweep_float16);

template <>
std::size_t sweep_stretch(const float* gradient, const float* residual, std::size_t count,
                          Key<float> threshold, StretchCandidates<float>& found) {
  return HWY_DYNAMIC_DISPATCH(sweep_float)(gradient, residual, count, threshold, found);
}

template <>
std::size_t sweep_stretch(const double* gradient, const double* residual, std::size_t count,
                          Key<double> threshold, StretchCandidates<double>& found) {
  return HWY_DYNAMIC_DISPATCH(sweep_double)(gradient, residual, count, threshold, found);
}

template <>
std::size_t sweep_stretch(const Bfloat16* gradient, const float* residual, std::size_t count,
                          Key<float> threshold, StretchCandidates<float>& found) {
  return HWY_DYNAMIC_DISPATCH(sweep_bfloat16)(gradient, residual, count, threshold, found);
}

template <>
std::size_t sweep_stretch(const Float16* gradient, const float* residual, std::size_t count,
                          Key<float> threshold, StretchCandidates<float>& found) {
  return HWY_DYNAMIC_DISPATCH(sweep_float16)(gradient, residual, count, threshold, found);
}

}  // namespace gtopk::sparse
#endif  // HWY_ONCE
