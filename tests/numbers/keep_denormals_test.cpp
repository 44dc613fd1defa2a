// Denormals are kept inside, and the host's setting is restored afterwards.
#include "src/numbers/keep_denormals.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/numbers/flush_denormals.hpp"

namespace gtopk::sparse {
namespace {

float halve(float value) {
  volatile float at_run_time = value;
  return at_run_time * 0.5F;
}

TEST(KeepDenormals, KeepsThemAndRestoresTheHostsSetting) {
  const float least_normal = std::numeric_limits<float>::min();
  const testing::FlushDenormals host;
  ASSERT_EQ(halve(least_normal), 0.0F);
  {
    const KeepDenormals guard;
    EXPECT_GT(halve(least_normal), 0.0F);
  }
  EXPECT_EQ(halve(least_normal), 0.0F);
}

}  // namespace
}  // namespace gtopk::sparse
