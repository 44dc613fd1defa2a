// gtopk-info: advice on what is likely to make a job slow or fail on a machine, and what to do
// about it. It is a pure function of what was found.
#pragma once

#include <string>
#include <vector>

#include "tools/programs/info/machine.hpp"

namespace gtopk::programs::info {

/// Returns sentences that each say what was found and what would be better.
[[nodiscard]] std::vector<std::string> advice(const Machine& machine);

}  // namespace gtopk::programs::info
