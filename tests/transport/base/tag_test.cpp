// Transport, base: tags differ in whatever a receive must distinguish.
#include "src/transport/base/tag.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>

namespace gtopk::transport {
namespace {

TEST(Tag, EveryFieldOfACollectiveMessageMakesAnotherTag) {
  std::set<Tag> tags;
  std::size_t made = 0;
  for (const std::uint32_t group : {0U, 1U, kMaxGroups - 1}) {
    for (const std::uint32_t source : {0U, 1U, kMaxRanks - 1}) {
      for (const std::uint64_t sequence : {0U, 1U, 0xffffU}) {
        for (const std::uint32_t step : {0U, 1U, 255U}) {
          for (const std::uint32_t chunk : {0U, 1U, 255U}) {
            tags.insert(collective_tag(group, source, sequence, step, chunk));
            ++made;
          }
        }
      }
    }
  }
  EXPECT_EQ(tags.size(), made);
}

TEST(Tag, AFieldThatWrapsTouchesNoOther) {
  EXPECT_EQ(collective_tag(1, 2, 0x10003, 4, 5), collective_tag(1, 2, 3, 4, 5));
  EXPECT_EQ(collective_tag(1, 2, 3, 256 + 4, 5), collective_tag(1, 2, 3, 4, 5));
  EXPECT_EQ(collective_tag(1, 2, 3, 4, 256 + 5), collective_tag(1, 2, 3, 4, 5));
  EXPECT_EQ(collective_tag(kMaxGroups + 1, 2, 3, 4), collective_tag(1, 2, 3, 4));
  EXPECT_EQ(collective_tag(1, kMaxRanks + 2, 3, 4), collective_tag(1, 2, 3, 4));
}

TEST(Tag, KindsNeverMeet) {
  EXPECT_NE(collective_tag(0, 0, 0, 0), point_to_point_tag(0, 0, 0));
  EXPECT_NE(collective_tag(0, 0, 0, 0), control_tag(0));
  EXPECT_NE(point_to_point_tag(0, 0, 0), control_tag(0));
  EXPECT_EQ(control_tag(std::numeric_limits<std::uint64_t>::max()) >> 62U,
            static_cast<Tag>(TagKind::kControl));
  EXPECT_EQ(point_to_point_tag(kMaxGroups - 1, kMaxRanks - 1, -1) >> 62U,
            static_cast<Tag>(TagKind::kPointToPoint));
  EXPECT_EQ(kind_of(payload_tag(kMaxGroups - 1, kMaxRanks - 1, ~0U)), TagKind::kPayload);
  EXPECT_NE(payload_tag(0, 0, 0), point_to_point_tag(0, 0, 0));
}

TEST(Tag, Any32BitsAreAUsersTag) {
  std::set<Tag> tags;
  for (const std::int32_t user : {0, 1, -1, std::numeric_limits<std::int32_t>::max(),
                                  std::numeric_limits<std::int32_t>::min()}) {
    tags.insert(point_to_point_tag(3, 1, user));
  }
  EXPECT_EQ(tags.size(), 5U);
  EXPECT_NE(point_to_point_tag(3, 1, -1), point_to_point_tag(3, 2, -1));
}

TEST(Tag, ATagDescribesItself) {
  EXPECT_EQ(describe(collective_tag(3, 1, 17, 2, 9)),
            "collective group 3 source 1 sequence 17 step 2 chunk 9");
  EXPECT_EQ(describe(point_to_point_tag(3, 1, -7)), "point-to-point group 3 source 1 tag -7");
  EXPECT_EQ(describe(payload_tag(3, 1, 4000000000U)), "payload group 3 source 1 serial 4000000000");
  EXPECT_EQ(describe(control_tag(0xabcU)), "control sender 0000000000000abc");
}

}  // namespace
}  // namespace gtopk::transport
