// gtopk-info: what on a machine is likely to make a job slow or fail, and what to do about it. A
// pure function of what was found.
#pragma once

#include <string>
#include <vector>

#include "tools/programs/info/machine.hpp"

namespace gtopk::programs::info {

/// Each sentence says what was found, and what would be better.
[[nodiscard]] std::vector<std::string> advice(const Machine& machine);

}  // namespace gtopk::programs::info
