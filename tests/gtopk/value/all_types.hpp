// Test support: every element type with every width of index, for typed tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>

#include "gtopk/types.hpp"
#include "src/numbers/half.hpp"

namespace gtopk::sparse::testing {

template <class ElementType, class IndexType>
struct Types {
  using T = ElementType;
  using Index = IndexType;
};

using AllTypes = ::testing::Types<Types<float, std::uint32_t>, Types<float, std::uint64_t>,
                                  Types<double, std::uint32_t>, Types<double, std::uint64_t>,
                                  Types<Bfloat16, std::uint32_t>, Types<Bfloat16, std::uint64_t>,
                                  Types<Float16, std::uint32_t>, Types<Float16, std::uint64_t>>;

/// With the indices that devices have.
using NarrowTypes = ::testing::Types<Types<float, std::uint32_t>, Types<double, std::uint32_t>,
                                     Types<Bfloat16, std::uint32_t>, Types<Float16, std::uint32_t>>;

template <class T>
inline constexpr DataType kTypeOf = std::is_same_v<T, float>      ? DataType::kFloat32
                                    : std::is_same_v<T, double>   ? DataType::kFloat64
                                    : std::is_same_v<T, Bfloat16> ? DataType::kBfloat16
                                                                  : DataType::kFloat16;

}  // namespace gtopk::sparse::testing
