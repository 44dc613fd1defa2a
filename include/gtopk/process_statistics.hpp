// Public surface: what this process has done in all its groups.
#pragma once

#include <optional>

#include "gtopk/metrics.hpp"

namespace gtopk {

/// The statistics of all groups that this process has been in since it started, also of those that
/// have ended and of earlier Processes, added up as kMetrics says. Nullopt if it has been in none.
/// Any thread. A forked child begins anew.
[[nodiscard]] std::optional<Statistics> process_statistics();

}  // namespace gtopk
