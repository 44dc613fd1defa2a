// Tests, sparse: typical gradient values, and values that only an adversary would send.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::testing {

enum class Kind : std::uint8_t {
  kGaussian,
  kTies,  // few magnitudes, both signs
  kAllEqual,
  kMostlyZero,  // zeros of both signs between few values
  kAllZero,
  kSubnormal,
  kAnyFinite,  // any bits that are finite
  kAscending,  // every element larger than those before it
  kClustered,  // the large ones side by side
  kCount,
};

[[nodiscard]] inline Kind random_kind(std::mt19937_64& random) {
  return static_cast<Kind>(random() % static_cast<std::uint64_t>(Kind::kCount));
}

template <class T>
[[nodiscard]] T any_bits(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
[[nodiscard]] T random_value(Kind kind, std::size_t i, std::size_t d, std::mt19937_64& random) {
  using Value = Accumulation<T>;
  std::normal_distribution<Value> normal;
  const Value sign = (random() & 1U) != 0 ? Value{1} : Value{-1};
  switch (kind) {
    case Kind::kGaussian:
      return narrow<T>(normal(random));
    case Kind::kTies:
      return narrow<T>(sign * static_cast<Value>(random() % 4));
    case Kind::kAllEqual:
      return narrow<T>(Value{0.5});
    case Kind::kMostlyZero:
      return narrow<T>(random() % 8 == 0 ? normal(random) : sign * 0);
    case Kind::kAllZero:
      return narrow<T>(sign * 0);
    case Kind::kSubnormal: {
      T value = any_bits<T>(random);
      T mask = narrow<T>(std::numeric_limits<Value>::infinity());
      std::uint64_t value_bits = 0;
      std::uint64_t mask_bits = 0;
      std::memcpy(&value_bits, &value, sizeof value);
      std::memcpy(&mask_bits, &mask, sizeof mask);
      value_bits &= ~mask_bits;
      std::memcpy(&value, &value_bits, sizeof value);
      return value;
    }
    case Kind::kAnyFinite: {
      T value = any_bits<T>(random);
      while (!std::isfinite(widen(value))) {
        value = any_bits<T>(random);
      }
      return value;
    }
    case Kind::kAscending:
      return narrow<T>(static_cast<Value>(i + 1) / static_cast<Value>(d));
    case Kind::kClustered:
      return narrow<T>(normal(random) * (i > d / 3 && i < d / 3 + d / 16 ? 100 : 1));
    case Kind::kCount:
      break;
  }
  return T{};
}

template <class T>
[[nodiscard]] std::vector<T> random_values(Kind kind, std::size_t d, std::mt19937_64& random) {
  std::vector<T> values(d);
  for (std::size_t i = 0; i < d; ++i) {
    values[i] = random_value<T>(kind, i, d, random);
  }
  return values;
}

}  // namespace gtopk::sparse::testing
