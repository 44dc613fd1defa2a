// Which calls the kernels take.
#include <gtest/gtest.h>

#include <cstdint>

#include "src/gpu/device_path.hpp"

namespace gtopk::gpu {
namespace {

TEST(DevicePaths, EndWhereIndicesNeedMoreThanThirtyTwoBits) {
  SparseOptions options;
  options.k = 100;
  for (const char* const algorithm : {"gtopk", "topk", "dense", "random-k", "sketch", "auto"}) {
    options.algorithm = algorithm;
    const auto takes = [&](std::uint64_t d) {
      return device_path_of({.d = d, .dtype = DataType::kBfloat16, .ranks = 4}, options)
          .has_value();
    };
    EXPECT_TRUE(takes((std::uint64_t{1} << 32U) - 1)) << algorithm;
    EXPECT_FALSE(takes(std::uint64_t{1} << 32U)) << algorithm;
    EXPECT_FALSE(takes(0)) << algorithm;
  }
}

}  // namespace
}  // namespace gtopk::gpu
