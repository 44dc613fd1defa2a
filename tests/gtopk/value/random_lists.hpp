// Tests, sparse: lists of random entries, and the types of lists.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"

namespace gtopk::sparse::testing {

template <class ValueType, class IndexType>
struct ListTypes {
  using Value = ValueType;
  using Index = IndexType;
};

/// Every type of value with every width of index, for typed tests.
using AllListTypes =
    ::testing::Types<ListTypes<float, std::uint32_t>, ListTypes<float, std::uint64_t>,
                     ListTypes<double, std::uint32_t>, ListTypes<double, std::uint64_t>>;

/// Gaussian values at indices below d, each at most `gap` after the one before.
template <class Value, class Index>
[[nodiscard]] List<Value, Index> random_list_below(std::size_t d, std::size_t gap,
                                                   std::mt19937_64& random) {
  List<Value, Index> list;
  std::normal_distribution<Value> normal;
  for (std::size_t i = random() % gap; i < d; i += 1 + random() % gap) {
    list.push(static_cast<Index>(i), normal(random));
  }
  return list;
}

/// `size` values of any kind, the first less than `gap` after index `start`, each of the others at
/// most `gap` after the one before.
template <class Value, class Index>
[[nodiscard]] List<Value, Index> random_list_from(std::uint64_t start, std::size_t size,
                                                  std::uint64_t gap, std::mt19937_64& random) {
  const Kind kind = random_kind(random);
  List<Value, Index> list;
  std::uint64_t index = start;
  for (std::size_t i = 0; i < size; ++i) {
    index += random() % gap + (i == 0 ? 0 : 1);
    list.push(static_cast<Index>(index), random_value<Value>(kind, i, size, random));
  }
  return list;
}

}  // namespace gtopk::sparse::testing
