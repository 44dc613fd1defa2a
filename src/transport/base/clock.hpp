// Transport, base: time as the engine sees it. It is real time for real networks, and virtual time
// for the deterministic transport, so that tests of deadlines do not wait.
#pragma once

#include <chrono>

namespace gtopk::transport {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  Clock(Clock&&) = delete;
  Clock& operator=(Clock&&) = delete;
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace gtopk::transport
