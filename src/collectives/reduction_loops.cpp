// Collectives: the loops of reduction.hpp, compiled once per SIMD target and chosen at run time.
// Each element takes one operation and one rounding, so every target gives the same bits. Floating
// types use Highway's vectors, integers use loops that the compiler vectorises.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "src/collectives/reduction.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"
#include "src/numbers/keep_denormals.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/collectives/reduction_loops.cpp"
#include <hwy/foreach_target.h>

#include "src/numbers/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gtopk::collectives::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using gtopk::HWY_NAMESPACE::load_wide;
using gtopk::HWY_NAMESPACE::store_narrow;

// --- vectors of floats

struct Sum {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D /*d*/, hn::Vec<D> a, hn::Vec<D> b) const {
    return hn::Add(a, b);
  }
};
struct Product {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D /*d*/, hn::Vec<D> a, hn::Vec<D> b) const {
    return hn::Mul(a, b);
  }
};
/// The smaller value. NaN wins, as in torch; of two NaNs, the first one wins.
struct Smaller {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D /*d*/, hn::Vec<D> a, hn::Vec<D> b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
};
struct Larger {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D /*d*/, hn::Vec<D> a, hn::Vec<D> b) const {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
};

/// Computes into[i] = op(left[i], right[i]). The remainder after the last whole vector is also
/// computed as a vector.
template <class T, class Op>
HWY_INLINE void each_float(T* into, const T* left, const T* right, std::size_t n, Op op) {
  const hn::ScalableTag<Accumulation<T>> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [&](const T* a, const T* b, T* to)
                      HWY_ATTR { store_narrow(d, op(d, load_wide(d, a), load_wide(d, b)), to); };
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    at(left + i, right + i, into + i);
    at(left + i + lanes, right + i + lanes, into + i + lanes);
    at(left + i + 2 * lanes, right + i + 2 * lanes, into + i + 2 * lanes);
    at(left + i + 3 * lanes, right + i + 3 * lanes, into + i + 3 * lanes);
  }
  for (; i + lanes <= n; i += lanes) {
    at(left + i, right + i, into + i);
  }
  if (i < n) {
    T rest[2][hn::MaxLanes(d)] = {};
    std::memcpy(rest[0], left + i, (n - i) * sizeof(T));
    std::memcpy(rest[1], right + i, (n - i) * sizeof(T));
    at(rest[0], rest[1], rest[0]);
    std::memcpy(into + i, rest[0], (n - i) * sizeof(T));
  }
}

template <class T>
HWY_INLINE void reduce_floats(T* into, const T* left, const T* right, std::size_t n, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      each_float(into, left, right, n, Sum{});
      return;
    case ReduceOp::kProduct:
      each_float(into, left, right, n, Product{});
      return;
    case ReduceOp::kMin:
      each_float(into, left, right, n, Smaller{});
      return;
    case ReduceOp::kMax:
      each_float(into, left, right, n, Larger{});
      return;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return;  // rejected by check_reduction
  }
}

// --- complex numbers, which add part by part

/// Computes (a + ib)(c + id) by the definition, because the product of std::complex would look for
/// infinities among NaN. The remainder after the last whole vector is also computed in vectors: g++
/// 12 would turn a loop over numbers into fused multiply-adds even where they are forbidden, except
/// in the loop's remainder.
template <class T>
HWY_INLINE void multiply_complex(T* into, const T* left, const T* right, std::size_t n) {
  using Part = typename T::value_type;
  const hn::ScalableTag<Part> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [&](const Part* a, const Part* b, Part* to) HWY_ATTR {
    hn::Vec<decltype(d)> left_real;
    hn::Vec<decltype(d)> left_imag;
    hn::Vec<decltype(d)> right_real;
    hn::Vec<decltype(d)> right_imag;
    hn::LoadInterleaved2(d, a, left_real, left_imag);
    hn::LoadInterleaved2(d, b, right_real, right_imag);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(left_real, right_real), hn::Mul(left_imag, right_imag)),
                          hn::Add(hn::Mul(left_real, right_imag), hn::Mul(left_imag, right_real)),
                          d, to);
  };
  const auto* const a = reinterpret_cast<const Part*>(left);
  const auto* const b = reinterpret_cast<const Part*>(right);
  auto* const to = reinterpret_cast<Part*>(into);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    at(a + 2 * i, b + 2 * i, to + 2 * i);
  }
  if (i < n) {
    HWY_ALIGN Part rest_a[2 * hn::MaxLanes(d)] = {};
    HWY_ALIGN Part rest_b[2 * hn::MaxLanes(d)] = {};
    const std::size_t bytes = 2 * (n - i) * sizeof(Part);
    std::memcpy(rest_a, a + 2 * i, bytes);
    std::memcpy(rest_b, b + 2 * i, bytes);
    at(rest_a, rest_b, rest_a);
    std::memcpy(to + 2 * i, rest_a, bytes);
  }
}

// --- integers, which wrap: signed overflow would be undefined

template <class T, class Op>
HWY_INLINE void each_integer(T* into, const T* left, const T* right, std::size_t n, Op op) {
  using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
  // `into` may be `left` or `right` but never a shifted view of them; the vectoriser relies on it.
#if !defined(__clang__)
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < n; ++i) {
    into[i] = static_cast<T>(op(static_cast<Wide>(left[i]), static_cast<Wide>(right[i])));
  }
}

template <class T>
HWY_INLINE void pick_integer(T* into, const T* left, const T* right, std::size_t n, bool smaller) {
#if !defined(__clang__)
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < n; ++i) {
    into[i] = (left[i] < right[i]) == smaller ? left[i] : right[i];
  }
}

template <class T>
HWY_INLINE void reduce_integers(T* into, const T* left, const T* right, std::size_t n,
                                ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      each_integer(into, left, right, n, [](auto a, auto b) HWY_ATTR { return a + b; });
      return;
    case ReduceOp::kProduct:
      each_integer(into, left, right, n, [](auto a, auto b) HWY_ATTR { return a * b; });
      return;
    case ReduceOp::kMin:
      pick_integer(into, left, right, n, true);
      return;
    case ReduceOp::kMax:
      pick_integer(into, left, right, n, false);
      return;
    case ReduceOp::kBitAnd:
      each_integer(into, left, right, n, [](auto a, auto b) HWY_ATTR { return a & b; });
      return;
    case ReduceOp::kBitOr:
      each_integer(into, left, right, n, [](auto a, auto b) HWY_ATTR { return a | b; });
      return;
    case ReduceOp::kBitXor:
      each_integer(into, left, right, n, [](auto a, auto b) HWY_ATTR { return a ^ b; });
      return;
    case ReduceOp::kPremulSum:
      return;  // rejected by check_reduction
  }
}

// --- truth values: any byte but zero is true

template <class Op>
HWY_INLINE void each_bool(Bool* into, const Bool* left, const Bool* right, std::size_t n, Op op) {
#if !defined(__clang__)
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < n; ++i) {
    into[i].byte = static_cast<std::uint8_t>(op(left[i].byte != 0, right[i].byte != 0));
  }
}

HWY_INLINE void reduce_bools(Bool* into, const Bool* left, const Bool* right, std::size_t n,
                             ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      each_bool(into, left, right, n, [](bool a, bool b) HWY_ATTR { return a | b; });
      return;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      each_bool(into, left, right, n, [](bool a, bool b) HWY_ATTR { return a & b; });
      return;
    case ReduceOp::kBitXor:
      each_bool(into, left, right, n, [](bool a, bool b) HWY_ATTR { return a != b; });
      return;
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return;  // rejected by check_reduction
  }
}

// --- one vector and a number

struct DividedBy {
  double divisor;
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> a) const {
    return hn::Div(a, hn::Set(d, static_cast<hn::TFromD<D>>(divisor)));
  }
};
struct Times {
  double factor;
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> a) const {
    return hn::Mul(a, hn::Set(d, static_cast<hn::TFromD<D>>(factor)));
  }
};

template <class T, class Op>
HWY_INLINE void scale_floats(T* data, std::size_t n, Op op) {
  const hn::ScalableTag<Accumulation<T>> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    store_narrow(d, op(d, load_wide(d, data + i)), data + i);
  }
  if (i < n) {
    T rest[hn::MaxLanes(d)] = {};
    std::memcpy(rest, data + i, (n - i) * sizeof(T));
    store_narrow(d, op(d, load_wide(d, rest)), rest);
    std::memcpy(data + i, rest, (n - i) * sizeof(T));
  }
}

/// Applies an operation to floats, and to complex numbers part by part.
template <class T, class Op>
HWY_INLINE void scale(T* data, std::size_t n, Op op) {
  if constexpr (kIsFloating<T>) {
    scale_floats(data, n, op);
  } else if constexpr (kIsComplex<T>) {
    scale_floats(reinterpret_cast<typename T::value_type*>(data), 2 * n, op);
  }
}

/// Rounds towards minus infinity.
template <class T>
HWY_INLINE void divide_integers(T* data, std::size_t n, std::uint32_t divisor) {
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (std::is_unsigned_v<T>) {
      data[i] = static_cast<T>(data[i] / divisor);
    } else {
      const auto by = static_cast<std::int64_t>(divisor);
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number here
      const auto value = static_cast<std::int64_t>(data[i]);
      data[i] = static_cast<T>(value / by - (value % by < 0 ? 1 : 0));
    }
  }
}

// Highway's dispatch table takes no templates.
void reduce_any(void* into, const void* left, const void* right, std::size_t n, DataType type,
                ReduceOp op) {
  visit_type(type, [&]<class T>() HWY_ATTR {
    auto* const to = static_cast<T*>(into);
    const auto* const a = static_cast<const T*>(left);
    const auto* const b = static_cast<const T*>(right);
    if constexpr (kIsFloating<T>) {
      reduce_floats(to, a, b, n, op);
    } else if constexpr (kIsComplex<T>) {
      using Part = typename T::value_type;
      if (op == ReduceOp::kProduct) {
        multiply_complex(to, a, b, n);
      } else {
        reduce_floats(reinterpret_cast<Part*>(to), reinterpret_cast<const Part*>(a),
                      reinterpret_cast<const Part*>(b), 2 * n, op);
      }
    } else if constexpr (std::is_same_v<T, Bool>) {
      reduce_bools(to, a, b, n, op);
    } else {
      reduce_integers(to, a, b, n, op);
    }
  });
}

void divide_any(void* data, std::size_t n, DataType type, std::uint32_t divisor) {
  visit_type(type, [&]<class T>() HWY_ATTR {
    if constexpr (std::is_integral_v<T>) {
      divide_integers(static_cast<T*>(data), n, divisor);
    } else {
      scale(static_cast<T*>(data), n, DividedBy{static_cast<double>(divisor)});
    }
  });
}

void multiply_any(void* data, std::size_t n, DataType type, double factor) {
  visit_type(type, [&]<class T>() HWY_ATTR { scale(static_cast<T*>(data), n, Times{factor}); });
}

}  // namespace gtopk::collectives::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gtopk::collectives {

HWY_EXPORT(reduce_any);
HWY_EXPORT(divide_any);
HWY_EXPORT(multiply_any);

void reduce(void* into, const void* left, const void* right, std::size_t elements, DataType type,
            ReduceOp op) {
  const KeepDenormals guard;  // a rank whose threads flush denormals would get different bits
  HWY_DYNAMIC_DISPATCH(reduce_any)(into, left, right, elements, type, op);
}

void divide(void* data, std::size_t elements, DataType type, std::uint32_t divisor) {
  const KeepDenormals guard;
  HWY_DYNAMIC_DISPATCH(divide_any)(data, elements, type, divisor);
}

void multiply(void* data, std::size_t elements, DataType type, double factor) {
  const KeepDenormals guard;
  HWY_DYNAMIC_DISPATCH(multiply_any)(data, elements, type, factor);
}

}  // namespace gtopk::collectives
#endif  // HWY_ONCE
