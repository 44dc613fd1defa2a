// Sparse, wire: coded indices: bit for bit what the page says, close to the entropy at every
// density, and never longer than the reserved space.
#include "src/gtopk/wire/rice.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/gtopk/wire/codec.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

using Bytes = std::vector<std::byte>;

template <class Index>
Bytes encoded(const std::vector<Index>& indices, std::uint64_t d) {
  Bytes code(rice::capacity_for(indices.size(), d));
  code.resize(rice::encode(indices.data(), indices.size(), code.data()));
  return code;
}

template <class Index>
std::vector<Index> decoded(const Bytes& code, std::size_t count, std::uint64_t d) {
  std::vector<Index> indices(count);
  rice::decode(code, indices.data(), count, d);
  return indices;
}

Bytes bytes(std::initializer_list<unsigned> values) {
  Bytes bytes;
  for (const unsigned value : values) {
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

TEST(Rice, WritesWhatThePageSays) {
  // Gaps 5, 3, 0, 7: their mean 3.75 and a half, 4, make b = 2; low bits 1, 3, 0, 3; then 1, 0, 0,
  // 1 in unary.
  const std::vector<std::uint32_t> indices = {5, 9, 10, 18};
  EXPECT_EQ(encoded(indices, 100), bytes({2, 0b11'00'11'01, 0b10'1110}));
  EXPECT_EQ(decoded<std::uint32_t>(bytes({2, 0b11'00'11'01, 0b10'1110}), 4, 19), indices);
  EXPECT_THROW(decoded<std::uint32_t>(bytes({2, 0b11'00'11'01, 0b10'1110}), 4, 18), Damaged);
}

TEST(Rice, IsABitmapWhereEverySecondIndexIsThere) {
  const std::vector<std::uint32_t> indices = {0, 1, 3, 4, 6, 8};
  EXPECT_EQ(encoded(indices, 100), bytes({0, 0b0101'1011, 0b1}));
}

TEST(Rice, NoIndicesAreNoBytes) {
  EXPECT_EQ(encoded(std::vector<std::uint64_t>{}, 100).size(), 0U);
  EXPECT_THROW(decoded<std::uint64_t>(bytes({0}), 0, 100), Damaged);
}

// log2 C(d, k) / k bits per entry are the minimum, as all sets of k indices are equally likely.
TEST(Rice, IsWithinTwentiethOfTheEntropyAtEveryDensity) {
  for (const double density : {1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.5}) {
    reference::Random random(7);
    const std::uint64_t d = density < 1e-3 ? 30'000'000 : 3'000'000;
    std::vector<std::uint32_t> indices;
    for (std::uint64_t i = 0; i < d; ++i) {
      if (random.uniform() < density) {
        indices.push_back(static_cast<std::uint32_t>(i));
      }
    }
    const auto k = static_cast<double>(indices.size());
    const auto all = static_cast<double>(d);
    const double entropy =
        (std::lgamma(all + 1) - std::lgamma(k + 1) - std::lgamma(all - k + 1)) / std::log(2.0) / k;
    const Bytes code = encoded(indices, d);
    EXPECT_LE(8.0 * static_cast<double>(code.size()) / k, 1.05 * entropy) << density;
    ASSERT_EQ(decoded<std::uint32_t>(code, indices.size(), d), indices) << density;
  }
}

TEST(Rice, GivesBackIndicesOfAnyWidthWhereverTheyLie) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62U;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    reference::Random random(seed);
    // Neighbours and leaps in one list, as layers produce them.
    std::vector<std::uint64_t> indices;
    std::uint64_t next = 0;
    const std::uint64_t count = random.below(700);
    while (indices.size() < count) {
      const std::uint64_t gap = random.one_in(50) ? random.below(kMost / 700) : random.below(5);
      if (next + gap >= kMost) {
        break;
      }
      indices.push_back(next + gap);
      next += gap + 1;
    }
    const std::uint64_t d = next + random.below(3);
    if (d == 0) {
      continue;
    }
    const Bytes code = encoded(indices, d);
    ASSERT_LE(code.size(), rice::capacity_for(indices.size(), d)) << "seed " << seed;
    ASSERT_EQ(decoded<std::uint64_t>(code, indices.size(), d), indices) << "seed " << seed;
  }
}

TEST(Rice, TheFirstAndTheLastIndexThereCanBe) {
  for (const std::uint64_t d :
       {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1} << 32U, std::uint64_t{1} << 62U}) {
    const std::vector<std::uint64_t> indices =
        d == 1 ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{0, d - 1};
    EXPECT_EQ(decoded<std::uint64_t>(encoded(indices, d), indices.size(), d), indices) << d;
  }
}

}  // namespace
}  // namespace gtopk::sparse
