// Engine: the metrics of one group, one cell for each row of gtopk/metrics.hpp. The engine thread
// writes them; any thread may read them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gtopk/metrics.hpp"
#include "src/transport/base/clock.hpp"

namespace gtopk::engine {

class Metrics {
 public:
  void add(Metric metric, std::uint64_t amount = 1) {
    cell(metric).fetch_add(amount, std::memory_order_relaxed);
  }
  /// Adds to a metric in seconds.
  void add(Metric metric, transport::Duration time) {
    add(metric, static_cast<std::uint64_t>(time.count()));
  }
  /// Raises a metric that is a maximum.
  void raise(Metric metric, std::uint64_t value) {
    if (value > count(metric)) {
      cell(metric).store(value, std::memory_order_relaxed);
    }
  }
  /// The value of a metric; times are in nanoseconds.
  [[nodiscard]] std::uint64_t count(Metric metric) const {
    return cells_[static_cast<std::size_t>(metric)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] Statistics read() const {
    Statistics statistics;
    for (std::size_t row = 0; row < kMetrics.size(); ++row) {
      const std::uint64_t value = cells_[row].load(std::memory_order_relaxed);
      if (kMetrics[row].count != nullptr) {
        statistics.*kMetrics[row].count = value;
      } else {
        statistics.*kMetrics[row].seconds = static_cast<double>(value) * 1e-9;
      }
    }
    return statistics;
  }

 private:
  std::atomic<std::uint64_t>& cell(Metric metric) {
    return cells_[static_cast<std::size_t>(metric)];
  }

  std::array<std::atomic<std::uint64_t>, kMetrics.size()> cells_{};
};

}  // namespace gtopk::engine
