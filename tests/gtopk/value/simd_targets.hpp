// Tests, sparse: runs a body once per SIMD target that this machine supports and the
// library was compiled for, to compare their bits.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>

namespace gtopk::sparse::testing {

template <class Body>
void for_each_simd_target(Body body) {
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  ASSERT_NE(supported, 0);
  for (std::int64_t rest = supported; rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace gtopk::sparse::testing
