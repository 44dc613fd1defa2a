// gtopk-allreduce: times one row's steps. It prints nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtopk/metrics.hpp"
#include "gtopk/plan.hpp"
#include "tools/programs/allreduce/options.hpp"
#include "tools/programs/allreduce/subject.hpp"
#include "tools/programs/job.hpp"

namespace gtopk::programs::allreduce {

struct Measurement {
  /// For each step, the seconds of the slowest rank, from its call to its end; all ranks leave a
  /// barrier before each step.
  std::vector<double> seconds;
  /// The bytes per step of the rank that sends most, including headers.
  double bytes_sent = 0;
  /// Shares of this rank's time, from 0 to 1.
  double select_share = 0;
  double exchange_share = 0;
  double commit_share = 0;
  std::uint64_t checksum = 0;  ///< checksum of this rank's last tensor
  std::string place;           ///< as in Subject
};

[[nodiscard]] Measurement measure(Job& job, const Setting& setting, const Options& options,
                                  const Device* device);

/// The library's prediction for the setting from the costs measured in this job; none if the
/// algorithm has no model.
[[nodiscard]] std::optional<Prediction> predicted(Job& job, const Setting& setting,
                                                  PlanReport& report);

}  // namespace gtopk::programs::allreduce
