/// @file
/// What this process has done in all its groups.
#pragma once

#include <optional>

#include "gtopk/metrics.hpp"

namespace gtopk {

/// The statistics of all groups that this process has been in since it started, including those
/// that have ended and those of earlier Processes, combined as kMetrics says. Returns nullopt if it
/// has been in no group. May be called on any thread. A forked child starts from zero.
[[nodiscard]] std::optional<Statistics> process_statistics();

}  // namespace gtopk
