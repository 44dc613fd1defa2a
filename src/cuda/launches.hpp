// CUDA: the number of kernels that each call launches, whatever it finds on the device. Tests
// compare this with the launches of typed_calls.hpp, and tools/gpu-check with the launches on a
// GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/cuda/calls.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/select.hpp"

namespace gtopk::cuda {

struct Launches {
  const char* call;  ///< the call's name, with the selector of a selection
  std::uint64_t count;
};

[[nodiscard]] inline Launches launches_of_selection(DataType dtype, std::uint64_t d,
                                                    const SelectionRule& rule) {
  namespace device = sparse::device;
  const bool exact = rule.kind == SelectionRule::Kind::kExact;
  const std::uint64_t most = exact ? rule.k : rule.most;
  const bool collects = device::SelectionWorkspace<float>::candidates_of(d, most) != 0;
  const std::uint64_t key = dtype == DataType::kFloat64 ? device::Digits<double>::kLevels
                                                        : device::Digits<float>::kLevels;
  const auto after = [&](std::uint64_t first) {
    return 1 + std::max<std::uint64_t>(first, collects ? 3 : 0) + key + 2;
  };
  switch (rule.kind) {
    case SelectionRule::Kind::kExact:
      return {"select_exact", after(0)};
    case SelectionRule::Kind::kNormal:
      return {"select_gaussian", after(1)};
    case SelectionRule::Kind::kSample:
      return {"select_sampled", after(key)};
    case SelectionRule::Kind::kThreshold:
      return {"select_threshold", after(0)};
    case SelectionRule::Kind::kBlocks:
      return {"select_block", 3};
  }
  return {};
}

[[nodiscard]] inline Launches launches_of(const SelectCall& call) {
  return launches_of_selection(call.acc.dtype, call.acc.d, call.rule);
}
[[nodiscard]] constexpr Launches launches_of(const CommitCall& /*call*/) { return {"commit", 3}; }
[[nodiscard]] constexpr Launches launches_of(const AccumulateCall& /*call*/) {
  return {"accumulate", 1};
}
[[nodiscard]] constexpr Launches launches_of(const GatherCall& /*call*/) { return {"gather", 1}; }
[[nodiscard]] constexpr Launches launches_of(const CommitWholeCall& /*call*/) {
  return {"commit_whole", 1};
}
[[nodiscard]] constexpr Launches launches_of(const SketchCall& /*call*/) { return {"sketch", 4}; }
[[nodiscard]] inline Launches launches_of(const FindCall& call) {
  const Launches selection = launches_of_selection(call.values, call.d, {.k = call.most});
  return {"find", 2 + selection.count};
}

}  // namespace gtopk::cuda
