// Tests of sets of cores: to text and back, and invalid text.
#include "src/transport/topology/cores.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gtopk/error.hpp"

namespace gtopk::topology {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Cores, GoToTextAndBack) {
  for (const char* const text : {"0", "0-3", "0-3,8", "1,3,5", "0,2-3,65535"}) {
    EXPECT_EQ(to_text(cores_from(text)), text);
  }
  EXPECT_EQ(to_text(cores_from("8,0-3,2-4,8")), "0-4,8");
  EXPECT_EQ(to_text({}), "none");
}

TEST(Cores, AreRefusedWhereTheTextIsNoList) {
  for (const char* const text : {"", "a", "1,", ",1", "3-1", "-1", "1-", "1--2", "0x1", "65536",
                                 "1 2", "99999999999", "0-3,8;"}) {
    try {
      static_cast<void>(cores_from(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("'" + std::string(text) + "' is not a list"));
    }
  }
}

TEST(Cores, HaveCommonOnesAndIncludeOthers) {
  EXPECT_THAT(common({0, 1, 2, 8}, {1, 8, 9}), ElementsAre(1, 8));
  EXPECT_THAT(common({0, 1}, {2}), IsEmpty());
  EXPECT_TRUE(includes({0, 1, 2}, {0, 2}));
  EXPECT_TRUE(includes({0}, {}));
  EXPECT_FALSE(includes({0, 1}, {1, 2}));
}

}  // namespace
}  // namespace gtopk::topology
