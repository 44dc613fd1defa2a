// Sparse, wire: how many ranks are in each entry: a bit each where all are one, what went in
// comes out, and nothing else is accepted.
#include "src/gtopk/wire/counts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/gtopk/wire/codec.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/first_seed.hpp"
#include "tests/support/mutate.hpp"

namespace gtopk::sparse {
namespace {

using Bytes = std::vector<std::byte>;
using Counts = std::vector<std::uint32_t>;

Bytes code_of(const Counts& counts, std::uint64_t ranks) {
  GrowingBuffer scratch;
  Bytes code(counts::capacity_for(counts.size(), ranks));
  code.resize(counts::encode(counts.data(), counts.size(), scratch, code.data()));
  return code;
}

Counts counts_in(const Bytes& code, std::size_t entries, std::uint64_t ranks) {
  GrowingBuffer scratch;
  Counts counts(entries);
  counts::decode(code, counts.data(), entries, ranks, scratch);
  return counts;
}

TEST(CountsOfRanks, AreCodedAsThePageSays) {
  // Beyond 1: 0, 1, 0, 3. Their mean 1 and a half, 1, makes b = 0: 1, 01, 1, 0001.
  EXPECT_EQ(code_of({1, 2, 1, 4}, 4), (Bytes{std::byte{0}, std::byte{0b1000'1101}}));
  EXPECT_EQ(code_of(Counts(16, 1), 4), (Bytes{std::byte{0}, std::byte{0xFF}, std::byte{0xFF}}));
}

TEST(CountsOfRanks, AreABitEachWhereAllAreOne) {
  for (const std::size_t entries : {0U, 1U, 8U, 9U, 256U, 257U, 100000U}) {
    EXPECT_EQ(code_of(Counts(entries, 1), 8).size(), counts::fewest_bytes(entries)) << entries;
  }
}

TEST(CountsOfRanks, ComeOutAsTheyWentIn) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    reference::Random random(seed);
    const std::uint64_t ranks = 1 + random.below(seed % 2 == 0 ? 5 : 1U << 18U);
    Counts counts(random.below(700));
    const bool all = random.one_in(4);
    for (std::uint32_t& count : counts) {
      count = static_cast<std::uint32_t>(all ? ranks : 1 + random.below(ranks));
    }
    const Bytes code = code_of(counts, ranks);
    ASSERT_LE(code.size(), counts::capacity_for(counts.size(), ranks)) << "seed " << seed;
    ASSERT_EQ(counts_in(code, counts.size(), ranks), counts) << "seed " << seed;
  }
}

TEST(CountsOfRanks, AreRefusedWhereThereAreFewerRanks) {
  EXPECT_NO_THROW((void)counts_in(code_of({1, 5, 1, 1}, 5), 4, 5));
  EXPECT_THROW((void)counts_in(code_of({1, 5, 1, 1}, 5), 4, 4), Damaged);
  EXPECT_THROW((void)counts_in(code_of({1, 5}, 5), 3, 5), Damaged);
  EXPECT_THROW((void)counts_in(code_of({1, 5, 1}, 5), 2, 5), Damaged);
}

TEST(CountsOfRanks, AreRefusedOrWhatTheBytesSay) {
  std::uint64_t read = 0;
  const std::uint64_t first = support::first_seed();
  for (std::uint64_t seed = first; seed < first + 5000; ++seed) {
    reference::Random random(seed);
    Counts counts(1 + random.below(300));
    for (std::uint32_t& count : counts) {
      count = static_cast<std::uint32_t>(1 + random.below(6));
    }
    Bytes code = code_of(counts, 6);
    support::mutate(random, code);
    try {
      const Counts back = counts_in(code, counts.size(), 6);
      ASSERT_LE(std::ranges::max(back), 6U) << "seed " << seed;
      ASSERT_EQ(code_of(back, 6), code) << "seed " << seed;
      ++read;
    } catch (const Damaged&) {
      continue;
    }
  }
  EXPECT_GT(read, 10U);
}

}  // namespace
}  // namespace gtopk::sparse
