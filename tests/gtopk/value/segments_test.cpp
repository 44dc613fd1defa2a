// A vector in pieces: the cursor finds every element in either direction.
#include "src/gtopk/value/segments.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "tests/gtopk/value/cut.hpp"
#include "tests/gtopk/value/seeds.hpp"

namespace gtopk::sparse {
namespace {

TEST(Segments, TheCursorFindsEveryElementFromEveryOther) {
  testing::for_each_seed(300, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int> whole(1 + random() % 60);
    std::iota(whole.begin(), whole.end(), 0);
    const testing::Cut<int> cut(whole, testing::random_cuts(whole.size(), 20, random), random);
    SegmentCursor<const int> cursor(cut.segments());
    for (int step = 0; step < 200; ++step) {
      const std::size_t index = random() % whole.size();
      cursor.go_to(index);
      ASSERT_LE(cursor.begin(), index);
      ASSERT_LT(index, cursor.end());
      ASSERT_EQ(*cursor.at(index), static_cast<int>(index));
      ASSERT_EQ(*cursor.at(cursor.begin()), static_cast<int>(cursor.begin()));
      ASSERT_EQ(*cursor.at(cursor.end() - 1), static_cast<int>(cursor.end() - 1));
    }
  });
}

TEST(Segments, PartsComeInOrderAndNoneIsEmpty) {
  testing::for_each_seed(300, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int> whole(random() % 60);
    std::iota(whole.begin(), whole.end(), 0);
    const testing::Cut<int> cut(whole, testing::random_cuts(whole.size(), 20, random), random);
    std::vector<int> seen;
    for_each_segment(cut.segments(), whole.size(),
                     [&](const int* data, std::size_t begin, std::size_t end) {
                       EXPECT_EQ(begin, seen.size());
                       EXPECT_LT(begin, end);
                       seen.insert(seen.end(), data, data + (end - begin));
                     });
    EXPECT_EQ(seen, whole);
  });
}

TEST(Segments, APlainPointerIsOnePiece) {
  std::vector<int> whole{1, 2, 3};
  std::size_t parts = 0;
  const Segments<void> untyped(whole.data());
  for_each_segment(Segments<int>(untyped), whole.size(),
                   [&](int* data, std::size_t begin, std::size_t end) {
                     ++parts;
                     EXPECT_EQ(data, whole.data());
                     EXPECT_EQ(begin, 0U);
                     EXPECT_EQ(end, whole.size());
                   });
  EXPECT_EQ(parts, 1U);
}

}  // namespace
}  // namespace gtopk::sparse
