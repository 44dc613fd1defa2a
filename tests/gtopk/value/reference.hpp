// Tests, sparse: the contract written down as plainly as possible and independently of
// the library: values through double and frexp, order through a full sort, lists through a map.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "src/gtopk/value/entries.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::testing {

/// A list of entries that owns its arrays, with capacity for more than it holds.
template <class Value, class Index>
struct List {
  std::vector<Index> indices;
  std::vector<Value> values;

  [[nodiscard]] Entries<Value, Index> view() const {
    return {indices.data(), values.data(), indices.size()};
  }
  [[nodiscard]] EntriesOut<Value, Index> out(std::size_t capacity) {
    indices.assign(capacity, 0);
    values.assign(capacity, 0);
    return {indices.data(), values.data()};
  }
  void shrink(std::size_t size) {
    indices.resize(size);
    values.resize(size);
  }
  void push(Index index, Value value) {
    indices.push_back(index);
    values.push_back(value);
  }
};

template <class T>
[[nodiscard]] bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class Value, class Index>
[[nodiscard]] bool same_bits(const List<Value, Index>& a, const List<Value, Index>& b) {
  return same_bits(a.indices, b.indices) && same_bits(a.values, b.values);
}

/// The number that these 16 bits stand for: sign, `exponent_bits`, the rest mantissa.
[[nodiscard]] inline double decode_half(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0 : 1.0);
}

[[nodiscard]] inline float reference_widen(float value) { return value; }
[[nodiscard]] inline double reference_widen(double value) { return value; }
[[nodiscard]] inline float reference_widen(Bfloat16 value) {
  return static_cast<float>(decode_half(value.bits, 8));
}
[[nodiscard]] inline float reference_widen(Float16 value) {
  return static_cast<float>(decode_half(value.bits, 5));
}

template <class T>
[[nodiscard]] std::vector<Accumulation<T>> reference_acc(
    const std::vector<T>& gradient, const std::vector<Accumulation<T>>& residual) {
  std::vector<Accumulation<T>> acc(gradient.size());
  for (std::size_t i = 0; i < acc.size(); ++i) {
    acc[i] = reference_widen(gradient[i]) + (residual.empty() ? 0 : residual[i]);
  }
  return acc;
}

template <class Value>
[[nodiscard]] bool all_finite(const std::vector<Value>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](Value value) { return std::isfinite(value); });
}

/// The first k of the list in the selection order, sorted by index; all others except zeros go to
/// `rest`.
template <class Value, class Index>
[[nodiscard]] List<Value, Index> reference_first(const List<Value, Index>& list, std::size_t k,
                                                 List<Value, Index>* rest = nullptr) {
  std::vector<std::pair<Index, Value>> entries;
  for (std::size_t i = 0; i < list.indices.size(); ++i) {
    if (list.values[i] != 0) {
      entries.emplace_back(list.indices[i], list.values[i]);
    }
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::fabs(a.second) != std::fabs(b.second) ? std::fabs(a.second) > std::fabs(b.second)
                                                      : a.first < b.first;
  });
  const std::size_t count = std::min(k, entries.size());
  std::sort(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(entries.begin() + static_cast<std::ptrdiff_t>(count), entries.end());
  List<Value, Index> first;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i < count) {
      first.push(entries[i].first, entries[i].second);
    } else if (rest != nullptr) {
      rest->push(entries[i].first, entries[i].second);
    }
  }
  return first;
}

template <class Value, class Index>
[[nodiscard]] List<Value, Index> reference_sum(const List<Value, Index>& a,
                                               const List<Value, Index>& b) {
  std::map<Index, Value> sums;
  for (const auto* list : {&a, &b}) {
    for (std::size_t i = 0; i < list->indices.size(); ++i) {
      sums[list->indices[i]] += list->values[i];
    }
  }
  List<Value, Index> sum;
  for (const auto& [index, value] : sums) {
    sum.push(index, value);
  }
  return sum;
}

}  // namespace gtopk::sparse::testing
