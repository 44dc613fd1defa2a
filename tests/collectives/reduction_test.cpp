// Collectives: element-wise reductions, against the definition of each type and operation.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtopk/error.hpp"
#include "src/collectives/reduction.hpp"
#include "tests/reference/number.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::collectives {
namespace {

/// Wide enough for every sum and every product of two 64-bit numbers.
__extension__ using Wide = __int128;
__extension__ using WideProduct = unsigned __int128;

template <class T>
std::vector<T> reduced(const std::vector<T>& left, const std::vector<T>& right, DataType type,
                       ReduceOp op) {
  std::vector<T> into(left.size());
  reduce(into.data(), left.data(), right.data(), left.size(), type, op);
  // The same in place, on either side.
  std::vector<T> in_place = left;
  reduce(in_place.data(), in_place.data(), right.data(), left.size(), type, op);
  EXPECT_EQ(std::memcmp(in_place.data(), into.data(), into.size() * sizeof(T)), 0);
  in_place = right;
  reduce(in_place.data(), left.data(), in_place.data(), left.size(), type, op);
  EXPECT_EQ(std::memcmp(in_place.data(), into.data(), into.size() * sizeof(T)), 0);
  return into;
}

template <class T>
void expect_integer_reductions(DataType type) {
  constexpr T kMin = std::numeric_limits<T>::min();
  constexpr T kMax = std::numeric_limits<T>::max();
  const std::vector<T> left = {1, 2, kMax, kMin, kMax, 7, 100, 0};
  const std::vector<T> right = {3, 2, 1, kMax, kMax, 5, 3, kMax};
  const auto expect = [&](ReduceOp op, auto rule) {
    const std::vector<T> seen = reduced(left, right, type, op);
    for (std::size_t i = 0; i < left.size(); ++i) {
      // Computed in 128 bits, then truncated to the type: integers wrap.
      const auto value =
          static_cast<T>(rule(static_cast<Wide>(left[i]), static_cast<Wide>(right[i])));
      EXPECT_EQ(seen[i], value) << to_string(type) << " " << to_string(op) << " at " << i;
    }
  };
  expect(ReduceOp::kSum, [](auto a, auto b) { return a + b; });
  expect(ReduceOp::kAvg, [](auto a, auto b) { return a + b; });
  expect(ReduceOp::kProduct,
         [](auto a, auto b) { return static_cast<WideProduct>(a) * static_cast<WideProduct>(b); });
  expect(ReduceOp::kMin, [](auto a, auto b) { return a < b ? a : b; });
  expect(ReduceOp::kMax, [](auto a, auto b) { return a > b ? a : b; });
  expect(ReduceOp::kBitAnd, [](auto a, auto b) { return a & b; });
  expect(ReduceOp::kBitOr, [](auto a, auto b) { return a | b; });
  expect(ReduceOp::kBitXor, [](auto a, auto b) { return a ^ b; });
}

TEST(Reduction, IntegersWrap) {
  expect_integer_reductions<std::uint8_t>(DataType::kUint8);
  expect_integer_reductions<std::int8_t>(DataType::kInt8);
  expect_integer_reductions<std::int16_t>(DataType::kInt16);
  expect_integer_reductions<std::int32_t>(DataType::kInt32);
  expect_integer_reductions<std::int64_t>(DataType::kInt64);
  expect_integer_reductions<std::uint16_t>(DataType::kUint16);
  expect_integer_reductions<std::uint32_t>(DataType::kUint32);
  expect_integer_reductions<std::uint64_t>(DataType::kUint64);
}

TEST(Reduction, FloatsRoundOnceInTheirAccumulationType) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    reference::Bytes left = reference::zeros(type, 5);
    reference::Bytes right = reference::zeros(type, 5);
    const double lefts[] = {1, 0.1, reference::largest(type), -0.0, reference::smallest(type)};
    const double rights[] = {2, 0.2, reference::largest(type), -0.0, reference::smallest(type)};
    for (std::size_t i = 0; i < 5; ++i) {
      reference::store(type, left, i, lefts[i]);
      reference::store(type, right, i, rights[i]);
    }
    const auto expect = [&](ReduceOp op, auto rule) {
      reference::Bytes seen = reference::zeros(type, 5);
      reduce(seen.data(), left.data(), right.data(), 5, type, op);
      for (std::size_t i = 0; i < 5; ++i) {
        const double a = reference::load(type, left, i);
        const double b = reference::load(type, right, i);
        // The sum and the product of two halves are exact in double: one rounding to float32, one
        // to the type.
        const double in_float = static_cast<double>(static_cast<float>(rule(a, b)));
        const double expected =
            reference::rounded(type, type == DataType::kFloat64 ? rule(a, b) : in_float);
        const double value = reference::load(type, seen, i);
        EXPECT_EQ(value, expected) << to_string(type) << " " << to_string(op) << " at " << i;
        EXPECT_EQ(std::signbit(value), std::signbit(expected));
      }
    };
    expect(ReduceOp::kSum, [](double a, double b) { return a + b; });
    expect(ReduceOp::kProduct, [](double a, double b) { return a * b; });
    expect(ReduceOp::kMin, [](double a, double b) { return a < b ? a : b; });
    expect(ReduceOp::kMax, [](double a, double b) { return a > b ? a : b; });
  }
}

TEST(Reduction, NanWinsMinAndMaxOnBothSides) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
      reference::Bytes number = reference::zeros(type, 1);
      reference::Bytes nan = reference::zeros(type, 1);
      reference::store(type, number, 0, 1.0);
      reference::store(type, nan, 0, std::nan(""));
      reference::Bytes seen = reference::zeros(type, 1);
      reduce(seen.data(), number.data(), nan.data(), 1, type, op);
      EXPECT_TRUE(std::isnan(reference::load(type, seen, 0))) << to_string(type) << to_string(op);
      reduce(seen.data(), nan.data(), number.data(), 1, type, op);
      EXPECT_TRUE(std::isnan(reference::load(type, seen, 0))) << to_string(type) << to_string(op);
    }
  }
}

template <class T>
void expect_complex_reductions(DataType type) {
  using Number = std::complex<T>;
  const T large = std::numeric_limits<T>::max();
  const std::vector<Number> left = {{1, 2}, {T(0.1), -3}, {large, 0}, {0, 1}};
  const std::vector<Number> right = {{3, -5}, {T(0.2), T(0.7)}, {2, 1}, {0, 1}};
  const std::vector<Number> sums = reduced(left, right, type, ReduceOp::kSum);
  EXPECT_EQ(sums, reduced(left, right, type, ReduceOp::kAvg));
  const std::vector<Number> products = reduced(left, right, type, ReduceOp::kProduct);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto [a, b] = std::pair(left[i].real(), left[i].imag());
    const auto [c, d] = std::pair(right[i].real(), right[i].imag());
    EXPECT_EQ(sums[i].real(), a + c) << i;
    EXPECT_EQ(sums[i].imag(), b + d) << i;
    EXPECT_EQ(products[i].real(), a * c - b * d) << i;
    EXPECT_EQ(products[i].imag(), a * d + b * c) << i;
  }
  std::vector<Number> values = {{1, 10}, {-7, 0}};
  divide(values.data(), values.size(), type, 3);
  EXPECT_EQ(values, (std::vector<Number>{{T(1) / 3, T(10) / 3}, {T(-7) / 3, 0}}));
}

/// No product is fused with the sum, whatever vectors the numbers are computed in.
template <class T>
void expect_rounded_products(DataType type) {
  reference::Random random(7);
  for (const std::size_t n : {1UL, 3UL, 8UL, 37UL}) {
    std::vector<std::complex<T>> left(n);
    std::vector<std::complex<T>> right(n);
    for (std::size_t i = 0; i < n; ++i) {
      left[i] = {static_cast<T>(random.uniform()), static_cast<T>(random.uniform())};
      right[i] = {static_cast<T>(random.uniform()), static_cast<T>(random.uniform())};
    }
    std::vector<std::complex<T>> products(n);
    reduce(products.data(), left.data(), right.data(), n, type, ReduceOp::kProduct);
    for (std::size_t i = 0; i < n; ++i) {
      const volatile T ac = left[i].real() * right[i].real();
      const volatile T bd = left[i].imag() * right[i].imag();
      const volatile T ad = left[i].real() * right[i].imag();
      const volatile T bc = left[i].imag() * right[i].real();
      ASSERT_EQ(products[i], std::complex<T>(ac - bd, ad + bc)) << i << " of " << n;
    }
  }
}

TEST(Reduction, ComplexProductsAreRoundedBeforeTheyAreAdded) {
  expect_rounded_products<float>(DataType::kComplex64);
  expect_rounded_products<double>(DataType::kComplex128);
}

TEST(Reduction, ComplexNumbersAddMultiplyAndAreDividedByTheirParts) {
  expect_complex_reductions<float>(DataType::kComplex64);
  expect_complex_reductions<double>(DataType::kComplex128);
}

TEST(Reduction, BoolsAreTrueOrFalse) {
  const std::vector<std::uint8_t> left = {0, 0, 1, 1};
  const std::vector<std::uint8_t> right = {0, 1, 0, 1};
  using Row = std::vector<std::uint8_t>;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBitOr}) {
    EXPECT_EQ(reduced(left, right, DataType::kBool, op), (Row{0, 1, 1, 1})) << to_string(op);
  }
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBitAnd}) {
    EXPECT_EQ(reduced(left, right, DataType::kBool, op), (Row{0, 0, 0, 1})) << to_string(op);
  }
  EXPECT_EQ(reduced(left, right, DataType::kBool, ReduceOp::kBitXor), (Row{0, 1, 1, 0}));
}

TEST(Reduction, IntegersAreDividedTowardsMinusInfinity) {
  std::vector<std::int32_t> values = {7, -7, 6, -6, 1, -1, 0};
  divide(values.data(), values.size(), DataType::kInt32, 3);
  EXPECT_EQ(values, (std::vector<std::int32_t>{2, -3, 2, -2, 0, -1, 0}));
  std::vector<std::uint8_t> bytes = {255, 7};
  divide(bytes.data(), bytes.size(), DataType::kUint8, 4);
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{63, 1}));
  // More than fits in an int64.
  std::vector<std::uint64_t> large = {~std::uint64_t{0}, std::uint64_t{1} << 63U};
  divide(large.data(), large.size(), DataType::kUint64, 2);
  EXPECT_EQ(large, (std::vector<std::uint64_t>{~std::uint64_t{0} >> 1U, std::uint64_t{1} << 62U}));
}

TEST(Reduction, FloatsAreDividedWithOneRounding) {
  std::vector<float> values = {1.0F, 10.0F, -0.0F};
  divide(values.data(), values.size(), DataType::kFloat32, 3);
  EXPECT_EQ(values[0], 1.0F / 3.0F);
  EXPECT_EQ(values[1], 10.0F / 3.0F);
  EXPECT_TRUE(std::signbit(values[2]));
}

TEST(Reduction, Factor_IsRoundedToAccumulationTypeAndProductOnce) {
  const double factor = 1.0 / 3;
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    const std::vector<double> values = {3, -0.0, 0.1, reference::largest(type),
                                        9 * reference::smallest(type)};
    reference::Bytes data = reference::zeros(type, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      reference::store(type, data, i, values[i]);
    }
    const reference::Bytes before = data;
    multiply(data.data(), values.size(), type, factor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = reference::load(type, before, i);
      // The product of a half and a float32 is exact in double: one rounding to float32, one to
      // the type.
      const double narrow = static_cast<double>(
          static_cast<float>(value * static_cast<double>(static_cast<float>(factor))));
      const double expected =
          reference::rounded(type, type == DataType::kFloat64 ? value * factor : narrow);
      EXPECT_EQ(reference::load(type, data, i), expected) << to_string(type) << " at " << i;
      EXPECT_EQ(std::signbit(reference::load(type, data, i)), std::signbit(expected));
    }
  }
  std::vector<std::complex<float>> numbers = {{3, -1}, {0, 0.5F}};
  multiply(numbers.data(), numbers.size(), DataType::kComplex64, factor);
  const auto third = static_cast<float>(factor);
  EXPECT_EQ(numbers, (std::vector<std::complex<float>>{{3 * third, -third}, {0, 0.5F * third}}));
}

TEST(Reduction, WhatATypeDoesNotHaveIsRefused) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    EXPECT_THROW(check_reduction(type, ReduceOp::kBitAnd), Error);
    EXPECT_THROW(check_reduction(type, ReduceOp::kBitOr), Error);
    EXPECT_THROW(check_reduction(type, ReduceOp::kBitXor), Error);
    EXPECT_NO_THROW(check_reduction(type, ReduceOp::kAvg));
  }
  for (const DataType type : {DataType::kComplex64, DataType::kComplex128}) {
    for (const ReduceOp op :
         {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
      EXPECT_THROW(check_reduction(type, op), Error) << to_string(op);
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
      EXPECT_NO_THROW(check_reduction(type, op)) << to_string(op);
    }
  }
  for (const DataType type : {DataType::kBool, DataType::kInt8, DataType::kUint64}) {
    EXPECT_THROW(check_reduction(type, ReduceOp::kPremulSum), Error) << to_string(type);
  }
  for (const DataType type : {DataType::kFloat16, DataType::kFloat64, DataType::kComplex64}) {
    EXPECT_NO_THROW(check_reduction(type, ReduceOp::kPremulSum)) << to_string(type);
  }
  EXPECT_THROW(check_reduction(DataType::kBool, ReduceOp::kAvg), Error);
  EXPECT_NO_THROW(check_reduction(DataType::kInt64, ReduceOp::kBitXor));
}

}  // namespace
}  // namespace gtopk::collectives
