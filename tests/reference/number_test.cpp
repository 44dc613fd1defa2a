// Test support: the reference's own conversions, against the definitions of the formats.
#include "tests/reference/number.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace gtopk::reference {
namespace {

std::uint16_t bits_of(DataType type, double value) {
  Bytes bytes = zeros(type, 1);
  store(type, bytes, 0, value);
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes.data(), sizeof bits);
  return bits;
}

double value_of(DataType type, std::uint16_t bits) {
  Bytes bytes = zeros(type, 1);
  std::memcpy(bytes.data(), &bits, sizeof bits);
  return load(type, bytes, 0);
}

TEST(Number, EveryHalfPatternButNanSurvivesLoadAndStore) {
  for (const DataType type : {DataType::kBfloat16, DataType::kFloat16}) {
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
      const double value = value_of(type, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) {
        continue;
      }
      ASSERT_EQ(bits_of(type, value), bits) << to_string(type);
    }
  }
}

TEST(Number, Bfloat16IsTheUpperHalfOfFloat32) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const std::uint32_t wide = bits << 16U;
    float expected = 0.0F;
    std::memcpy(&expected, &wide, sizeof expected);
    const double seen = value_of(DataType::kBfloat16, static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(seen)) << bits;
    } else {
      ASSERT_EQ(seen, static_cast<double>(expected)) << bits;
    }
  }
}

TEST(Number, HalvesHaveTheirKnownPatterns) {
  EXPECT_EQ(bits_of(DataType::kFloat16, 1.0), 0x3C00U);
  EXPECT_EQ(bits_of(DataType::kFloat16, -2.0), 0xC000U);
  EXPECT_EQ(bits_of(DataType::kFloat16, 65504.0), 0x7BFFU);
  EXPECT_EQ(bits_of(DataType::kFloat16, 0x1p-24), 0x0001U);
  EXPECT_EQ(bits_of(DataType::kFloat16, 0x1p-14), 0x0400U);
  EXPECT_EQ(bits_of(DataType::kFloat16, -0.0), 0x8000U);
  EXPECT_EQ(bits_of(DataType::kFloat16, std::nan("")), 0x7E00U);
  EXPECT_EQ(bits_of(DataType::kBfloat16, 1.0), 0x3F80U);
  EXPECT_EQ(bits_of(DataType::kBfloat16, std::nan("")), 0x7FC0U);
  EXPECT_EQ(bits_of(DataType::kBfloat16, -std::numeric_limits<double>::infinity()), 0xFF80U);
}

TEST(Number, RoundingGoesToNearestAndTiesToEven) {
  EXPECT_EQ(rounded(DataType::kFloat16, 2049.0), 2048.0);
  EXPECT_EQ(rounded(DataType::kFloat16, 2051.0), 2052.0);
  EXPECT_EQ(rounded(DataType::kFloat16, 2049.0001), 2050.0);
  EXPECT_EQ(rounded(DataType::kBfloat16, 257.0), 256.0);
  EXPECT_EQ(rounded(DataType::kBfloat16, 259.0), 260.0);
  EXPECT_EQ(rounded(DataType::kFloat16, 0x1p-25), 0.0);
  EXPECT_EQ(rounded(DataType::kFloat16, 0x1.8p-24), 0x1p-23);
  EXPECT_EQ(rounded(DataType::kFloat16, 0x1.0001p-25), 0x1p-24);
}

TEST(Number, Float32RoundsAsTheCompilerDoes) {
  for (const double value : {0.1, 1.0 / 3.0, 0x1.000001p0, 0x1.0000011p0, 3e38, 0x1p-149, 0x1p-150,
                             0x1.8p-149, -1e-40, 16777217.0}) {
    EXPECT_EQ(rounded(DataType::kFloat32, value), static_cast<double>(static_cast<float>(value)))
        << value;
  }
}

TEST(Number, TooLarge_BecomesInfiniteHalfAStepAboveLargest) {
  for (const DataType type : {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16}) {
    const double half_step = largest(type) * epsilon(type) / 4.0;
    EXPECT_EQ(rounded(type, largest(type) + half_step / 2.0), largest(type)) << to_string(type);
    EXPECT_TRUE(std::isinf(rounded(type, largest(type) * (1.0 + epsilon(type)))))
        << to_string(type);
  }
  EXPECT_EQ(rounded(DataType::kFloat16, 65519.0), 65504.0);
  EXPECT_TRUE(std::isinf(rounded(DataType::kFloat16, 65520.0)));
  EXPECT_EQ(rounded(DataType::kFloat16, -1e9), -std::numeric_limits<double>::infinity());
}

TEST(Number, DifferenceNamesTheFirstElementThatDiffers) {
  Bytes one = zeros(DataType::kFloat32, 4);
  Bytes other = one;
  EXPECT_EQ(difference(DataType::kFloat32, one, other), "");
  store(DataType::kFloat32, other, 2, -0.0);
  store(DataType::kFloat32, other, 3, 5.0);
  EXPECT_EQ(difference(DataType::kFloat32, one, other),
            "2 of 4 float32 elements differ, the first at 2: 0 expected, -0 seen");
}

}  // namespace
}  // namespace gtopk::reference
