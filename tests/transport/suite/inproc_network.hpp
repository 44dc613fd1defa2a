// The in-process transport in the suite: a fabric whose events come in an order drawn from the
// seed, in virtual time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tests/transport/inproc/fabric.hpp"
#include "tests/transport/suite/network.hpp"

namespace gtopk::test {

class InprocNetwork final : public Network {
 public:
  InprocNetwork(std::size_t size, const transport::inproc::FabricOptions& options)
      : fabric_(static_cast<std::uint32_t>(size), options) {}

  [[nodiscard]] std::size_t size() const override { return fabric_.size(); }
  [[nodiscard]] Transport& operator[](std::size_t end) override {
    return fabric_.port(static_cast<std::uint32_t>(end));
  }

  bool move() override {
    bool moved = fabric_.deliver_one();
    moved = (*this)[fabric_.pick(size())].progress() || moved;
    for (std::size_t end = 0; end < size() && !moved; ++end) {
      moved = (*this)[end].progress();
    }
    return moved;
  }
  bool more_may_come() override { return fabric_.advance_to_next(); }
  [[nodiscard]] transport::TimePoint now() const override { return fabric_.clock().now(); }
  void close(std::size_t end) override { (*this)[end].close(kWatchdog); }

 private:
  transport::inproc::Fabric fabric_;
};

[[nodiscard]] inline auto inproc_network(transport::inproc::FabricOptions options) {
  return [options](std::size_t size, std::uint64_t seed) mutable {
    options.seed = seed;
    return std::make_unique<InprocNetwork>(size, options);
  };
}

}  // namespace gtopk::test
