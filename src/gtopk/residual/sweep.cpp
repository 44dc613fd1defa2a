// Sparse, residual: the SIMD sweeps, compiled once per target and chosen at run time. There is only
// one addition per element, so every target gives the same bits.
#include "src/gtopk/residual/sweep.hpp"

#include <cstdint>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/gtopk/residual/sweep.cpp"
#include <hwy/foreach_target.h>

#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using gtopk::HWY_NAMESPACE::load_wide;

template <class T>
HWY_INLINE void absorb(T* tensor, Accumulation<T>* residual, std::size_t count) {
  const hn::ScalableTag<Accumulation<T>> d;
  using TensorBits = std::conditional_t<sizeof(T) == 2, std::uint16_t, Key<Accumulation<T>>>;
  const hn::Rebind<TensorBits, decltype(d)> d_tensor;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d_tensor);
  auto* tensor_bits = reinterpret_cast<TensorBits*>(tensor);
  std::size_t i = 0;
  // Process two cache lines of one array, then two of the other: on Zen, arrays at some distances
  // (for example 1 MB + 32 kB) share the way predictor's tags, and every switch between them is a
  // miss.
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto gradient0 = load_wide(d, tensor + i);
    const auto gradient1 = load_wide(d, tensor + i + lanes);
    const auto gradient2 = load_wide(d, tensor + i + 2 * lanes);
    const auto gradient3 = load_wide(d, tensor + i + 3 * lanes);
    hn::StoreU(zero, d_tensor, tensor_bits + i);
    hn::StoreU(zero, d_tensor, tensor_bits + i + lanes);
    hn::StoreU(zero, d_tensor, tensor_bits + i + 2 * lanes);
    hn::StoreU(zero, d_tensor, tensor_bits + i + 3 * lanes);
    const auto acc0 = hn::Add(gradient0, hn::LoadU(d, residual + i));
    const auto acc1 = hn::Add(gradient1, hn::LoadU(d, residual + i + lanes));
    const auto acc2 = hn::Add(gradient2, hn::LoadU(d, residual + i + 2 * lanes));
    const auto acc3 = hn::Add(gradient3, hn::LoadU(d, residual + i + 3 * lanes));
    hn::StoreU(acc0, d, residual + i);
    hn::StoreU(acc1, d, residual + i + lanes);
    hn::StoreU(acc2, d, residual + i + 2 * lanes);
    hn::StoreU(acc3, d, residual + i + 3 * lanes);
  }
  for (; i < count; ++i) {
    residual[i] = accumulate_one(tensor[i], residual[i]);
    tensor[i] = T{};
  }
}

template <class T>
HWY_INLINE bool accumulate(const T* gradient, const Accumulation<T>* residual, Accumulation<T>* acc,
                           std::size_t count) {
  using Value = Accumulation<T>;
  const hn::ScalableTag<Value> d;
  const hn::RebindToSigned<decltype(d)> d_bits;
  const std::size_t lanes = hn::Lanes(d);
  using Bits = hwy::MakeSigned<Value>;
  const auto signless = hn::Set(d_bits, static_cast<Bits>(MagnitudeKey<Value>::kSignless));
  const auto largest = hn::Set(d_bits, static_cast<Bits>(MagnitudeKey<Value>::kInfinity - 1));
  auto wrong = hn::Zero(d_bits);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto before = residual == nullptr ? hn::Zero(d) : hn::LoadU(d, residual + i);
    const auto sum = hn::Add(load_wide(d, gradient + i), before);
    const auto key = hn::And(hn::BitCast(d_bits, sum), signless);
    wrong = hn::Or(wrong, hn::VecFromMask(d_bits, hn::Gt(key, largest)));
    hn::StoreU(sum, d, acc + i);
  }
  bool finite = hn::AllTrue(d_bits, hn::Eq(wrong, hn::Zero(d_bits)));
  for (; i < count; ++i) {
    acc[i] = accumulate_one(gradient[i], residual == nullptr ? Value{0} : residual[i]);
    finite = finite && is_finite_key<Value>(magnitude_key(acc[i]));
  }
  return finite;
}

// Highway's dispatch table takes no templates.
void absorb_float(float* tensor, float* residual, std::size_t count) {
  absorb(tensor, residual, count);
}
void absorb_double(double* tensor, double* residual, std::size_t count) {
  absorb(tensor, residual, count);
}
void absorb_bfloat16(Bfloat16* tensor, float* residual, std::size_t count) {
  absorb(tensor, residual, count);
}
void absorb_float16(Float16* tensor, float* residual, std::size_t count) {
  absorb(tensor, residual, count);
}

bool accumulate_float(const float* gradient, const float* residual, float* acc, std::size_t count) {
  return accumulate(gradient, residual, acc, count);
}
bool accumulate_double(const double* gradient, const double* residual, double* acc,
                       std::size_t count) {
  return accumulate(gradient, residual, acc, count);
}
bool accumulate_bfloat16(const Bfloat16* gradient, const float* residual, float* acc,
                         std::size_t count) {
  return accumulate(gradient, residual, acc, count);
}
bool accumulate_float16(const Float16* gradient, const float* residual, float* acc,
                        std::size_t count) {
  return accumulate(gradient, residual, acc, count);
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::sparse {

HWY_EXPORT(absorb_float);
HWY_EXPORT(absorb_double);
HWY_EXPORT(absorb_bfloat16);
HWY_EXPORT(absorb_float16);
HWY_EXPORT(accumulate_float);
HWY_EXPORT(accumulate_double);
HWY_EXPORT(accumulate_bfloat16);
HWY_EXPORT(accumulate_float16);

template <>
void absorb_stretch(float* tensor, float* residual, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(absorb_float)(tensor, residual, count);
}
template <>
void absorb_stretch(double* tensor, double* residual, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(absorb_double)(tensor, residual, count);
}
template <>
void absorb_stretch(Bfloat16* tensor, float* residual, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(absorb_bfloat16)(tensor, residual, count);
}
template <>
void absorb_stretch(Float16* tensor, float* residual, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(absorb_float16)(tensor, residual, count);
}

template <>
bool accumulate_stretch(const float* gradient, const float* residual, float* acc,
                        std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(accumulate_float)(gradient, residual, acc, count);
}
template <>
bool accumulate_stretch(const double* gradient, const double* residual, double* acc,
                        std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(accumulate_double)(gradient, residual, acc, count);
}
template <>
bool accumulate_stretch(const Bfloat16* gradient, const float* residual, float* acc,
                        std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(accumulate_bfloat16)(gradient, residual, acc, count);
}
template <>
bool accumulate_stretch(const Float16* gradient, const float* residual, float* acc,
                        std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(accumulate_float16)(gradient, residual, acc, count);
}

}  // namespace gtopk::sparse
#endif  // HWY_ONCE
