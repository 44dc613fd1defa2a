// Programs: statistics of times: quantiles, and the line alpha + bytes beta through them. Seconds
// are the only unit.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace gtopk::programs {

/// Returns a quantile of at least one sorted sample; `share` runs from 0, the smallest, to 1, the
/// largest.
[[nodiscard]] double quantile(const std::vector<double>& sorted, double share);

struct Summary {
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  double max = 0;
};
[[nodiscard]] Summary summary(std::vector<double> samples);

/// The time of a message one way: alpha + bytes * beta.
struct Link {
  double alpha = 0;  ///< seconds
  double beta = 0;   ///< seconds per byte
};

/// alpha is the smallest message's time. beta is the slope, by least squares, over messages of 64
/// KiB and more, or over all messages if fewer than two are that long. On a shaped link, short
/// messages fit into its bucket and pass faster than its wire. `points` has bytes and seconds,
/// ascending, at least two.
[[nodiscard]] Link fit(const std::vector<std::pair<double, double>>& points);

/// Describes a link in one line. A beta that is not positive gives no bandwidth, because other work
/// on the cores hid it.
[[nodiscard]] std::string described(const Link& link);

}  // namespace gtopk::programs
