// Test support: where the seeds of a fuzzer begin, so that runs without end meet new ones: at 0, or
// with --gtest_random_seed=N (1 to 99999) at N million.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

namespace gtopk::support {

inline std::uint64_t first_seed() {
  return static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1'000'000;
}

}  // namespace gtopk::support
