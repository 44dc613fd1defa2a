// Numbers: the one table of element types: a row per DataType, in its order. A type that is added
// here can be named, sized, moved and visited; each operation decides whether it takes it.
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "gtopk/types.hpp"
#include "src/numbers/half.hpp"

namespace gtopk {

/// A truth value as one byte, zero or not.
struct Bool {
  std::uint8_t byte;
};

template <class T>
struct Element {
  using Type = T;
  DataType type;
  std::string_view name;
};

inline constexpr std::tuple kElementTypes{
    Element<float>{DataType::kFloat32, "float32"},
    Element<double>{DataType::kFloat64, "float64"},
    Element<Bfloat16>{DataType::kBfloat16, "bfloat16"},
    Element<Float16>{DataType::kFloat16, "float16"},
    Element<std::uint8_t>{DataType::kUint8, "uint8"},
    Element<std::int8_t>{DataType::kInt8, "int8"},
    Element<std::int16_t>{DataType::kInt16, "int16"},
    Element<std::int32_t>{DataType::kInt32, "int32"},
    Element<std::int64_t>{DataType::kInt64, "int64"},
    Element<Bool>{DataType::kBool, "bool"},
    Element<std::uint16_t>{DataType::kUint16, "uint16"},
    Element<std::uint32_t>{DataType::kUint32, "uint32"},
    Element<std::uint64_t>{DataType::kUint64, "uint64"},
    Element<std::complex<float>>{DataType::kComplex64, "complex64"},
    Element<std::complex<double>>{DataType::kComplex128, "complex128"},
};

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Bfloat16> || std::is_same_v<T, Float16>;
template <class T>
inline constexpr bool kIsFloating = std::is_floating_point_v<T> || kIsHalf<T>;
template <class T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

/// Calls f with the row of `type`. Returns false, and makes no call, if there is none.
template <class F>
constexpr bool visit_row(DataType type, F f) {
  return std::apply(
      [&](const auto&... rows) { return ((rows.type == type && (f(rows), true)) || ...); },
      kElementTypes);
}

/// Calls f.operator()<T>() with the C++ type of `type`. Returns false, and makes no call, if it has
/// no row.
template <class F>
bool visit_type(DataType type, F f) {
  return visit_row(type, [&]<class T>(const Element<T>&) { f.template operator()<T>(); });
}

/// Does the same for the types that can be accumulated: float, double and the half types.
template <class F>
bool visit_floating(DataType type, F f) {
  bool floating = false;
  visit_row(type, [&]<class T>(const Element<T>&) {
    if constexpr (kIsFloating<T>) {
      floating = true;
      f.template operator()<T>();
    }
  });
  return floating;
}

/// The name of a type of the table, or "opaque(n)" for a type that the core only moves.
[[nodiscard]] std::string name_of(DataType type);

}  // namespace gtopk
