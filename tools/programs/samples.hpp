// Programs: what is made of times: quantiles, and the line alpha + bytes beta through them. It
// knows no unit but seconds.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace gtopk::programs {

/// Of sorted samples, which must not be empty; `share` from 0, the smallest, to 1, the largest.
[[nodiscard]] double quantile(const std::vector<double>& sorted, double share);

struct Summary {
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  double max = 0;
};
[[nodiscard]] Summary summary(std::vector<double> samples);

/// What a message of so many bytes takes one way: alpha + bytes * beta.
struct Link {
  double alpha = 0;  ///< seconds
  double beta = 0;   ///< seconds per byte
};

/// alpha is what the smallest message takes. beta is the slope of those of 64 KiB and more, by
/// least squares; of all where fewer than two are that long: a shaped link lets short ones pass
/// within its bucket, faster than its wire. points: bytes and seconds, ascending, two at least.
[[nodiscard]] Link fit(const std::vector<std::pair<double, double>>& points);

}  // namespace gtopk::programs
