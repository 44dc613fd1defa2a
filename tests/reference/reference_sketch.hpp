// Reference: count-sketches as docs/algorithms.md words them. Part of the reference; nothing else
// includes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/reference/reference.hpp"
#include "tests/reference/reference_parts.hpp"

namespace gtopk::reference {

/// Of one index in one row.
struct Place {
  std::uint64_t cell = 0;  ///< among those of all rows
  bool minus = false;
};

/// The places of element `index` in a sketch of `columns` for each row: hash after hash, each from
/// its polynomial.
[[nodiscard]] inline std::vector<Place> places_of(std::uint64_t index, std::uint64_t seed,
                                                  std::uint64_t columns) {
  __extension__ using Wide = unsigned __int128;
  constexpr std::uint64_t kPrime = 0x1FFF'FFFF'FFFF'FFFF;
  std::uint64_t number = 0;
  const auto hash = [&](unsigned coefficients) {
    Wide sum = 0;
    Wide power = 1;
    for (unsigned i = 0; i < coefficients; ++i) {
      sum = (sum + power * (drawn_number(seed, ++number) % kPrime)) % kPrime;
      power = power * index % kPrime;
    }
    return sum;
  };
  std::vector<Place> places;
  for (std::uint64_t row = 0; row < SketchShape::kRows; ++row) {
    const auto cell = static_cast<std::uint64_t>(hash(2) * columns / (Wide{kPrime} + 1));
    const bool minus = hash(4) % 2 == 1;
    places.push_back({row * columns + cell, minus});
  }
  return places;
}

/// The places of every index below d.
[[nodiscard]] inline std::vector<std::vector<Place>> all_places(std::uint64_t d, std::uint64_t seed,
                                                                std::uint64_t columns) {
  std::vector<std::vector<Place>> places;
  for (std::uint64_t i = 0; i < d; ++i) {
    places.push_back(places_of(i, seed, columns));
  }
  return places;
}

template <class Value>
std::vector<Value> sketched(const std::vector<Value>& acc,
                            const std::vector<std::vector<Place>>& places, std::uint64_t cells) {
  double largest = 0;
  for (const Value value : acc) {
    if (!std::isfinite(value)) {
      return std::vector<Value>(cells, std::numeric_limits<Value>::quiet_NaN());
    }
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  // Whole numbers of 2^-scale: `above` is the least with every |acc| < 2^above, or -1022.
  int above = -1022;
  while (above < 1024 && largest >= std::ldexp(1.0, above)) {
    ++above;
  }
  int digits = 62;
  for (std::uint64_t d = acc.size(); d != 0; d /= 2) {
    --digits;
  }
  const int scale = std::min(digits, 51) - above;
  std::vector<std::int64_t> sums(cells);
  for (std::uint64_t i = 0; i < acc.size(); ++i) {
    const double number = std::nearbyint(std::ldexp(static_cast<double>(acc[i]), scale));
    for (const Place& place : places[i]) {
      sums[place.cell] += static_cast<std::int64_t>(place.minus ? -number : number);
    }
  }
  std::vector<Value> sketch;
  for (const std::int64_t sum : sums) {
    sketch.push_back(static_cast<Value>(std::ldexp(static_cast<double>(sum), -scale)));
  }
  return sketch;
}

/// The `most` indices whose medians come first in the selection order.
template <class Value>
std::vector<std::uint64_t> heaviest(const std::vector<Value>& sketch,
                                    const std::vector<std::vector<Place>>& places,
                                    std::uint64_t most) {
  Entries<Value> medians;
  for (std::uint64_t i = 0; i < places.size(); ++i) {
    std::vector<Value> estimates;
    for (const Place& place : places[i]) {
      estimates.push_back(place.minus ? -sketch[place.cell] : sketch[place.cell]);
    }
    std::sort(estimates.begin(), estimates.end());
    medians[i] = estimates[estimates.size() / 2];
  }
  std::vector<Dropped<Value>> rest;
  reselect(medians, most, 0, rest);
  std::vector<std::uint64_t> indices;
  for (const auto& [index, median] : medians) {
    indices.push_back(index);
  }
  return indices;
}

}  // namespace gtopk::reference
