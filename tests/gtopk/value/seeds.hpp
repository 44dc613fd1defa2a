// Tests, sparse: seeds of random cases. A failure prints its seed; GTOPK_SEED=<seed>
// runs that case alone.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/support/sanitized.hpp"

namespace gtopk::sparse::testing {

/// Runs body(seed) for support::seeds(count) cases, and stops at the first failure.
template <class Body>
void for_each_seed(std::uint64_t count, Body body) {
  std::uint64_t first = 1;
  count = support::seeds(count);
  if (const char* chosen = std::getenv("GTOPK_SEED"); chosen != nullptr) {
    first = std::strtoull(chosen, nullptr, 10);
    count = 1;
  }
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("replay with GTOPK_SEED=" + std::to_string(seed));
    body(seed);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
}

}  // namespace gtopk::sparse::testing
