// Collectives: the SIMD loops against the scalar rule, bit for bit: every half-precision number
// with numbers of every kind, every length around a vector, on every SIMD target of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/collectives/reduction.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"
#include "tests/gtopk/value/simd_targets.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::collectives {
namespace {

using sparse::testing::for_each_simd_target;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

/// The rule: computed in the accumulation type, rounded once; of two NaNs, the first.
template <class T>
T one(T left, T right, ReduceOp op) {
  const auto a = widen(left);
  const auto b = widen(right);
  switch (op) {
    case ReduceOp::kProduct:
      return narrow<T>(a * b);
    case ReduceOp::kMin:
      return narrow<T>(std::isnan(a) || a < b ? a : b);
    case ReduceOp::kMax:
      return narrow<T>(std::isnan(a) || a > b ? a : b);
    default:
      return narrow<T>(a + b);
  }
}

/// Equal bits, or any NaN where both operands are NaN: the compiler may pick either.
template <class T>
void expect_bits(const std::vector<T>& seen, const std::vector<T>& expected,
                 const std::vector<T>& left, const std::vector<T>& right) {
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (std::memcmp(&seen[i], &expected[i], sizeof(T)) == 0) {
      continue;
    }
    const bool both = std::isnan(widen(left[i])) && std::isnan(widen(right[i]));
    ASSERT_TRUE(both && std::isnan(widen(seen[i])))
        << widen(left[i]) << " and " << widen(right[i]) << " at " << i << ": " << widen(expected[i])
        << " expected, " << widen(seen[i]) << " seen";
  }
}

template <class T>
std::vector<T> every_half() {
  std::vector<T> all;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    all.push_back({static_cast<std::uint16_t>(bits)});
  }
  return all;
}

template <class T>
void expect_rule_for_every_half(DataType type) {
  const std::vector<T> left = every_half<T>();
  const std::uint16_t infinity = narrow<T>(std::numeric_limits<float>::infinity()).bits;
  const std::uint16_t one_bits = narrow<T>(1.0F).bits;
  // Zeros, subnormals, 1, odd numbers, the largest, infinities, NaN.
  const std::uint16_t rights[] = {0,
                                  0x8000,
                                  1,
                                  0x807F,
                                  one_bits,
                                  static_cast<std::uint16_t>(one_bits - 1),
                                  0xB6DB,
                                  static_cast<std::uint16_t>(infinity - 1),
                                  infinity,
                                  static_cast<std::uint16_t>(infinity | 0x8000U),
                                  static_cast<std::uint16_t>(infinity + 1)};
  for (const std::uint16_t bits : rights) {
    const std::vector<T> right(left.size(), T{bits});
    for (const ReduceOp op : kOps) {
      std::vector<T> expected;
      for (const T each : left) {
        expected.push_back(one(each, T{bits}, op));
      }
      for_each_simd_target([&] {
        std::vector<T> seen(left.size());
        reduce(seen.data(), left.data(), right.data(), left.size(), type, op);
        expect_bits(seen, expected, left, right);
      });
    }
  }
}

TEST(ReductionLoops, EveryBfloat16IsReducedByTheRule) {
  expect_rule_for_every_half<Bfloat16>(DataType::kBfloat16);
}

TEST(ReductionLoops, EveryFloat16IsReducedByTheRule) {
  expect_rule_for_every_half<Float16>(DataType::kFloat16);
}

template <class T>
void expect_scaled_by_the_rule(DataType type) {
  const std::vector<T> before = every_half<T>();
  for (const double number : {3.0, 7.0, 1.0 / 3, 0x1p-14 / 3, -1e30, 1e-40, 65519.0}) {
    const auto factor = static_cast<float>(number);
    const auto divisor = static_cast<std::uint32_t>(std::max(1.0, number));
    std::vector<T> products;
    std::vector<T> quotients;
    for (const T each : before) {
      products.push_back(narrow<T>(widen(each) * factor));
      quotients.push_back(narrow<T>(widen(each) / static_cast<float>(divisor)));
    }
    for_each_simd_target([&] {
      std::vector<T> seen = before;
      multiply(seen.data(), seen.size(), type, number);
      expect_bits(seen, products, before, before);
      seen = before;
      divide(seen.data(), seen.size(), type, divisor);
      expect_bits(seen, quotients, before, before);
    });
  }
}

TEST(ReductionLoops, EveryHalfIsMultipliedAndDividedByTheRule) {
  expect_scaled_by_the_rule<Bfloat16>(DataType::kBfloat16);
  expect_scaled_by_the_rule<Float16>(DataType::kFloat16);
}

template <class T>
void expect_rule_for_numbers_of_every_kind(DataType type) {
  using Limits = std::numeric_limits<T>;
  const std::vector<T> kinds = {0,
                                T(-0.0),
                                1,
                                T(-0.1),
                                T(1) / 3,
                                Limits::denorm_min(),
                                -3 * Limits::denorm_min(),
                                Limits::min(),
                                Limits::max(),
                                Limits::lowest(),
                                Limits::infinity(),
                                -Limits::infinity(),
                                Limits::quiet_NaN()};
  std::vector<T> left;
  std::vector<T> right;
  for (const T a : kinds) {
    left.insert(left.end(), kinds.size(), a);
    right.insert(right.end(), kinds.begin(), kinds.end());
  }
  for (const ReduceOp op : kOps) {
    std::vector<T> expected;
    for (std::size_t i = 0; i < left.size(); ++i) {
      expected.push_back(one(left[i], right[i], op));
    }
    for_each_simd_target([&] {
      std::vector<T> seen(left.size());
      reduce(seen.data(), left.data(), right.data(), left.size(), type, op);
      expect_bits(seen, expected, left, right);
    });
  }
}

TEST(ReductionLoops, FloatsOfEveryKindAreReducedByTheRule) {
  expect_rule_for_numbers_of_every_kind<float>(DataType::kFloat32);
  expect_rule_for_numbers_of_every_kind<double>(DataType::kFloat64);
}

// Elements past the end stay as they were, for any length and alignment.
TEST(ReductionLoops, TouchAsManyElementsAsTheyAreTold) {
  for (const DataType type : reference::named_values<DataType>()) {
    const std::size_t element = size_of(type);
    const std::size_t bytes = 80 * element;
    for (std::size_t n = 0; n < 70; ++n) {
      for_each_simd_target([&] {
        std::vector<std::byte> whole(bytes, std::byte{1});
        const std::vector<std::byte> other(bytes, std::byte{1});
        std::vector<std::byte> part = whole;
        reduce(whole.data(), whole.data(), other.data(), 80, type, ReduceOp::kSum);
        const std::size_t from = (n % 5) * element;
        reduce(part.data() + from, part.data() + from, other.data() + from, n, type,
               ReduceOp::kSum);
        for (std::size_t at = 0; at < bytes; ++at) {
          const bool inside = at >= from && at < from + n * element;
          ASSERT_EQ(part[at], inside ? whole[at] : std::byte{1})
              << to_string(type) << " n " << n << " byte " << at;
        }
      });
    }
  }
}

}  // namespace
}  // namespace gtopk::collectives
