#include "tools/programs/samples.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace gtopk::programs {
namespace {

constexpr double kLong = 65536;

double slope(const std::vector<std::pair<double, double>>& points, double from) {
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [x, y] : points) {
    if (x < from) {
      continue;
    }
    n += 1;
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

}  // namespace

double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(place))];
}

Summary summary(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples.front(), quantile(samples, 0.5), quantile(samples, 0.99), samples.back()};
}

Link fit(const std::vector<std::pair<double, double>>& points) {
  const auto is_long = [](const auto& point) { return point.first >= kLong; };
  const bool enough = std::count_if(points.begin(), points.end(), is_long) >= 2;
  return {points.front().second, slope(points, enough ? kLong : 0)};
}

std::string described(const Link& link) {
  const std::string alpha = fmt::format("alpha {:.2f} us", link.alpha * 1e6);
  if (link.beta <= 0) {
    return alpha +
           ", beta unknown: long messages took no longer than shorter ones; try more rounds";
  }
  return fmt::format("{}, beta {:.4f} ns/B ({:.3f} GB/s)", alpha, link.beta * 1e9,
                     1e-9 / link.beta);
}

}  // namespace gtopk::programs
