#include "src/collectives/reduction.hpp"

#include <fmt/format.h>

#include <cmath>
#include <complex>
#include <functional>
#include <type_traits>

#include "gtopk/error.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/check_known.hpp"
#include "src/numbers/element_types.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk {

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kAvg:
      return "AVG";
    case ReduceOp::kProduct:
      return "PRODUCT";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kBitAnd:
      return "BAND";
    case ReduceOp::kBitOr:
      return "BOR";
    case ReduceOp::kBitXor:
      return "BXOR";
    case ReduceOp::kPremulSum:
      return "PREMUL_SUM";
  }
  return "unknown";
}

}  // namespace gtopk

namespace gtopk::collectives {
namespace {

template <class T, class Op>
void each(T* into, const T* left, const T* right, std::size_t elements, Op op) {
  // `into` may be `left` or `right`, never shifted against them: the vectoriser may rely on it.
#if !defined(__clang__)
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < elements; ++i) {
    if constexpr (kIsHalf<T>) {
      into[i] = narrow<T>(op(widen(left[i]), widen(right[i])));
    } else {
      into[i] = static_cast<T>(op(left[i], right[i]));
    }
  }
}

/// NaN wins, as in torch.
struct Smaller {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return a;
    }
    return a < b ? a : b;
  }
};
struct Larger {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return a;
    }
    return a > b ? a : b;
  }
};
/// Integers wrap; the machine's own sum would be undefined on overflow.
template <template <class> class Op>
struct Wrapping {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
      return static_cast<T>(Op<Wide>{}(static_cast<Wide>(a), static_cast<Wide>(b)));
    } else {
      return Op<T>{}(a, b);
    }
  }
};

/// (a + ib)(c + id) as it is defined: the library's own would look for infinities among NaN.
struct ComplexProduct {
  template <class T>
  std::complex<T> operator()(std::complex<T> a, std::complex<T> b) const {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  }
};

template <class T>
void reduce_as(T* into, const T* left, const T* right, std::size_t n, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      each(into, left, right, n, Wrapping<std::plus>{});
      return;
    case ReduceOp::kProduct:
      each(into, left, right, n, Wrapping<std::multiplies>{});
      return;
    case ReduceOp::kMin:
      each(into, left, right, n, Smaller{});
      return;
    case ReduceOp::kMax:
      each(into, left, right, n, Larger{});
      return;
    case ReduceOp::kBitAnd:
      if constexpr (std::is_integral_v<T>) each(into, left, right, n, std::bit_and<>{});
      return;
    case ReduceOp::kBitOr:
      if constexpr (std::is_integral_v<T>) each(into, left, right, n, std::bit_or<>{});
      return;
    case ReduceOp::kBitXor:
      if constexpr (std::is_integral_v<T>) each(into, left, right, n, std::bit_xor<>{});
      return;
  }
}

void reduce_as(Bool* into, const Bool* left, const Bool* right, std::size_t n, ReduceOp op) {
  const auto with = [&](auto rule) {
    for (std::size_t i = 0; i < n; ++i) {
      into[i].byte = static_cast<std::uint8_t>(rule(left[i].byte != 0, right[i].byte != 0));
    }
  };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      with(std::logical_or<>{});
      return;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      with(std::logical_and<>{});
      return;
    case ReduceOp::kBitXor:
      with(std::not_equal_to<>{});
      return;
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return;  // refused by check_reduction
  }
}

template <class T>
void reduce_as(std::complex<T>* into, const std::complex<T>* left, const std::complex<T>* right,
               std::size_t n, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      each(into, left, right, n, std::plus<>{});
      return;
    case ReduceOp::kProduct:
      each(into, left, right, n, ComplexProduct{});
      return;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return;  // refused by check_reduction
  }
}

template <class T>
void divide_as(T* data, std::size_t n, std::uint32_t divisor) {
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (kIsHalf<T>) {
      data[i] = narrow<T>(widen(data[i]) / static_cast<float>(divisor));
    } else if constexpr (std::is_floating_point_v<T>) {
      data[i] /= static_cast<T>(divisor);
    } else if constexpr (kIsComplex<T>) {
      data[i] /= static_cast<typename T::value_type>(divisor);
    } else if constexpr (std::is_unsigned_v<T>) {
      data[i] = static_cast<T>(data[i] / divisor);
    } else {
      const auto by = static_cast<std::int64_t>(divisor);
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number here
      const auto value = static_cast<std::int64_t>(data[i]);
      data[i] = static_cast<T>(value / by - (value % by < 0 ? 1 : 0));
    }
  }
}

template <class T>
void multiply_as(T* data, std::size_t n, double factor) {
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (kIsHalf<T>) {
      data[i] = narrow<T>(widen(data[i]) * static_cast<float>(factor));
    } else if constexpr (kIsComplex<T>) {
      data[i] *= static_cast<typename T::value_type>(factor);
    } else {
      data[i] *= static_cast<T>(factor);
    }
  }
}

}  // namespace

void check_reduction(DataType type, ReduceOp op) {
  check_known(type, "data type");
  check_known(op, "reduction");
  const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool complex = is_complex(type);
  if ((bitwise && (is_floating(type) || complex)) || (ordered && complex) ||
      (op == ReduceOp::kAvg && type == DataType::kBool) ||
      (op == ReduceOp::kPremulSum && !is_floating(type) && !complex)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("ReduceOp.{} does not exist for {}", to_string(op), to_string(type)));
  }
}

void reduce(void* into, const void* left, const void* right, std::size_t elements, DataType type,
            ReduceOp op) {
  const KeepDenormals guard;  // a rank whose threads flush them would end with other bits
  visit_type(type, [&]<class T>() {
    reduce_as(static_cast<T*>(into), static_cast<const T*>(left), static_cast<const T*>(right),
              elements, op);
  });
}

void divide(void* data, std::size_t elements, DataType type, std::uint32_t divisor) {
  const KeepDenormals guard;
  visit_type(type, [&]<class T>() {
    if constexpr (!std::is_same_v<T, Bool>) divide_as(static_cast<T*>(data), elements, divisor);
  });
}

void multiply(void* data, std::size_t elements, DataType type, double factor) {
  const KeepDenormals guard;
  visit_type(type, [&]<class T>() {
    if constexpr (kIsFloating<T> || kIsComplex<T>) {
      multiply_as(static_cast<T*>(data), elements, factor);
    }
  });
}

}  // namespace gtopk::collectives
