// Numbers: the table of element types.
#include "src/numbers/element_types.hpp"

#include <cstddef>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace gtopk {
namespace {

TEST(ElementTypes, HaveOneRowEachInTheOrderOfTheirNumbers) {
  std::set<std::string> names;
  for (std::size_t code = 0; code < std::tuple_size_v<decltype(kElementTypes)>; ++code) {
    const auto type = static_cast<DataType>(code);
    EXPECT_GT(size_of(type), 0U) << code;
    names.insert(std::string(to_string(type)));
  }
  EXPECT_EQ(names.size(), std::tuple_size_v<decltype(kElementTypes)>);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(ElementTypes, OfFloatingKindAreFour) {
  std::size_t bytes = 0;
  for (unsigned code = 0; code < 256; ++code) {
    const auto type = static_cast<DataType>(code);
    const bool floating = visit_floating(type, [&]<class T>() { bytes += sizeof(T); });
    EXPECT_EQ(floating, is_floating(type)) << code;
  }
  EXPECT_EQ(bytes, 4U + 8U + 2U + 2U);
}

TEST(ElementTypes, OfComplexKindAreTwo) {
  std::size_t bytes = 0;
  for (unsigned code = 0; code < 256; ++code) {
    const auto type = static_cast<DataType>(code);
    if (!is_complex(type)) {
      continue;
    }
    EXPECT_FALSE(is_floating(type)) << code;
    bytes += size_of(type);
  }
  EXPECT_EQ(bytes, 8U + 16U);
}

TEST(ElementTypes, AnUnknownOneIsNeitherVisitedNorSized) {
  const auto unknown = static_cast<DataType>(127);
  EXPECT_FALSE(visit_type(unknown, []<class T>() { FAIL(); }));
  EXPECT_EQ(size_of(unknown), 0U);
  EXPECT_EQ(to_string(unknown), "unknown");
  EXPECT_EQ(name_of(opaque_type(5)), "opaque(5)");
}

}  // namespace
}  // namespace gtopk
