// Test support: UCX transports in one process and one thread. They run through the
// suite in tests/transport/suite, and know one another in the tests of this module.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/transport/ucx/ucx_transport.hpp"
#include "tests/transport/suite/message.hpp"
#include "tests/transport/suite/network.hpp"

namespace gtopk::test {

/// Calls `progress` until `done()`; false if the watchdog fires first.
template <typename Progress, typename Done>
bool progress_until(const Progress& progress, const Done& done,
                    std::chrono::nanoseconds limit = kWatchdog) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    if (!progress()) {
      sched_yield();
    }
  }
  return true;
}

class UcxNetwork : public Network {
 public:
  UcxNetwork(std::size_t size, const transport::UcxOptions& options) {
    for (std::size_t i = 0; i < size; ++i) {
      transports.push_back(transport::make_ucx_transport(options));
    }
  }

  [[nodiscard]] std::size_t size() const override { return transports.size(); }
  [[nodiscard]] Transport& operator[](std::size_t end) override { return *transports[end]; }

  bool move() override { return move_all_but(size()); }
  bool more_may_come() override {
    sched_yield();
    return true;
  }
  [[nodiscard]] transport::TimePoint now() const override {
    return std::chrono::steady_clock::now();
  }
  /// Over TCP a flush depends on the other ends' progress.
  void close(std::size_t end) override {
    std::atomic<bool> closed{false};
    std::thread closing([&] {
      transports[end]->close(kWatchdog);
      closed = true;
    });
    while (!closed) {
      if (!move_all_but(end)) {
        sched_yield();
      }
    }
    closing.join();
  }

  std::vector<std::unique_ptr<Transport>> transports;

 private:
  bool move_all_but(std::size_t left_alone) {
    bool moved = false;
    for (std::size_t end = 0; end < size(); ++end) {
      if (end != left_alone) {
        moved = transports[end]->progress() || moved;
      }
    }
    return moved;
  }
};

/// `size` transports, which all know each other.
class Mesh final : public UcxNetwork {
 public:
  explicit Mesh(std::size_t size, const transport::UcxOptions& options = {})
      : UcxNetwork(size, options) {
    introduce();
  }
};

[[nodiscard]] inline auto ucx_network(const char* transports, std::uint32_t connections = 1) {
  return [transports, connections](std::size_t size, std::uint64_t /*seed*/) {
    return std::make_unique<UcxNetwork>(
        size, transport::UcxOptions{.settings = {{"TLS", transports}}, .connections = connections});
  };
}

}  // namespace gtopk::test
