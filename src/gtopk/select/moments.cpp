// Sparse, select: sum and sum of squares of a chunk, compiled once per SIMD target and chosen
// at run time. Each partial sum adds the same elements in the same order for any vector width.
#include "src/gtopk/select/moments.hpp"

#include <algorithm>
#include <array>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/gtopk/select/moments.cpp"
#include <hwy/foreach_target.h>

#include "src/numbers/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gtopk::sparse::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using gtopk::HWY_NAMESPACE::load_wide;

template <class T>
class ChunkMoments {
 public:
  using Value = Accumulation<T>;

  HWY_INLINE Moments run(const T* gradient, const Value* residual, std::size_t count) {
    for (std::size_t group = 0; group < kGroups; ++group) {
      sums_[group] = hn::Zero(kDoubles);
      squares_[group] = hn::Zero(kDoubles);
    }
    std::size_t i = 0;
    if (residual == nullptr) {
      for (; i + kMomentsPartials <= count; i += kMomentsPartials) {
        add<false>(gradient + i, nullptr);
      }
    } else {
      for (; i + kMomentsPartials <= count; i += kMomentsPartials) {
        add<true>(gradient + i, residual + i);
      }
    }
    if (i < count) {  // trailing zeros do not change the sums
      std::array<T, kMomentsPartials> gradient_part{};
      std::array<Value, kMomentsPartials> residual_part{};
      for (std::size_t j = 0; i + j < count; ++j) {
        gradient_part[j] = gradient[i + j];
        residual_part[j] = residual == nullptr ? Value{0} : residual[i + j];
      }
      add<true>(gradient_part.data(), residual_part.data());
    }
    return {.sum = folded(sums_), .squares = folded(squares_)};
  }

 private:
  static constexpr hn::ScalableTag<double> kDoubles{};
  static constexpr hn::Rebind<Value, hn::ScalableTag<double>> kValues{};
  static constexpr std::size_t kLanes = hn::MaxLanes(kDoubles);
  static_assert(kMomentsPartials % kLanes == 0);
  static constexpr std::size_t kGroups = kMomentsPartials / kLanes;
  using Vector = hn::Vec<hn::ScalableTag<double>>;

  template <bool HasResidual>
  HWY_INLINE void add(const T* gradient, const Value* residual) {
    for (std::size_t group = 0; group < kGroups; ++group) {
      auto acc = load_wide(kValues, gradient + group * kLanes);
      if constexpr (HasResidual) {
        acc = hn::Add(acc, hn::LoadU(kValues, residual + group * kLanes));
      }
      const Vector wide = widened(acc);
      sums_[group] = hn::Add(sums_[group], wide);
      squares_[group] = hn::Add(squares_[group], hn::Mul(wide, wide));
    }
  }

  template <class V>
  static HWY_INLINE Vector widened(V acc) {
    if constexpr (sizeof(Value) == sizeof(double)) {
      return acc;
    } else {
      return hn::PromoteTo(kDoubles, acc);
    }
  }

  static HWY_INLINE double folded(const Vector (&groups)[kGroups]) {
    HWY_ALIGN double partials[kMomentsPartials];
    for (std::size_t group = 0; group < kGroups; ++group) {
      hn::StoreU(groups[group], kDoubles, partials + group * kLanes);
    }
    for (std::size_t width = kMomentsPartials / 2; width > 0; width /= 2) {
      for (std::size_t j = 0; j < width; ++j) {
        partials[j] = partials[j] + partials[j + width];
      }
    }
    return partials[0];
  }

  Vector sums_[kGroups];
  Vector squares_[kGroups];
};

// Highway's dispatch table takes no templates.
Moments chunk_float(const float* gradient, const float* residual, std::size_t count) {
  return ChunkMoments<float>().run(gradient, residual, count);
}

Moments chunk_double(const double* gradient, const double* residual, std::size_t count) {
  return ChunkMoments<double>().run(gradient, residual, count);
}

Moments chunk_bfloat16(const Bfloat16* gradient, const float* residual, std::size_t count) {
  return ChunkMoments<Bfloat16>().run(gradient, residual, count);
}

Moments chunk_float16(const Float16* gradient, const float* residual, std::size_t count) {
  return ChunkMoments<Float16>().run(gradient, residual, count);
}

}  // namespace gtopk::sparse::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::sparse {
namespace {

HWY_EXPORT(chunk_float);
HWY_EXPORT(chunk_double);
HWY_EXPORT(chunk_bfloat16);
HWY_EXPORT(chunk_float16);

Moments of_chunk(const float* gradient, const float* residual, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(chunk_float)(gradient, residual, count);
}
Moments of_chunk(const double* gradient, const double* residual, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(chunk_double)(gradient, residual, count);
}
Moments of_chunk(const Bfloat16* gradient, const float* residual, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(chunk_bfloat16)(gradient, residual, count);
}
Moments of_chunk(const Float16* gradient, const float* residual, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(chunk_float16)(gradient, residual, count);
}

}  // namespace

template <class T>
Moments moments(Segments<const T> gradient, const Accumulation<T>* residual, std::size_t d) {
  std::array<Moments, kMomentsGroups> groups{};
  SegmentCursor<const T> cursor(gradient);
  std::array<T, kMomentsChunk> gathered;
  for (std::size_t begin = 0, end = 0; begin < d; begin = end) {
    end = std::min(begin + kMomentsChunk, d);
    cursor.go_to(begin);
    const T* chunk = cursor.at(begin);
    if (cursor.end() < end) {
      for (std::size_t from = begin, to = 0; from < end; from = to) {
        cursor.go_to(from);
        to = std::min(cursor.end(), end);
        std::copy_n(cursor.at(from), to - from, gathered.data() + (from - begin));
      }
      chunk = gathered.data();
    }
    const Moments one =
        of_chunk(chunk, residual == nullptr ? nullptr : residual + begin, end - begin);
    Moments& group = groups[begin / kMomentsChunk % kMomentsGroups];
    group.sum += one.sum;
    group.squares += one.squares;
  }
  for (std::size_t width = kMomentsGroups / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) {
      groups[j].sum += groups[j + width].sum;
      groups[j].squares += groups[j + width].squares;
    }
  }
  return groups[0];
}

template Moments moments(Segments<const float>, const float*, std::size_t);
template Moments moments(Segments<const double>, const double*, std::size_t);
template Moments moments(Segments<const Bfloat16>, const float*, std::size_t);
template Moments moments(Segments<const Float16>, const float*, std::size_t);

}  // namespace gtopk::sparse
#endif  // HWY_ONCE
