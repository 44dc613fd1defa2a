// Tests, algorithms: the ranks of a sparse all-reduce, some of which have acc on a
// device, and what became of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/engine/engine.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/inproc_ranks.hpp"

namespace gtopk::sparse::testing {

inline transport::inproc::FabricOptions with_devices(std::uint64_t seed) {
  transport::inproc::FabricOptions options = support::network(seed);
  options.takes_devices = true;
  return options;
}

/// The ranks of a problem, some of which have a device.
template <class Device>
class JobOnDevices {
 public:
  /// on_device: for each rank.
  JobOnDevices(reference::Problem problem, std::uint64_t seed, std::vector<bool> on_device)
      : ranks_(static_cast<std::uint32_t>(problem.ranks.size()), with_devices(seed)),
        problem_(std::move(problem)) {
    problem_.hosts = ranks_.hosts();
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      tensors_.push_back(support::tensor_of(problem_, rank));
    }
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      if (on_device[rank]) {
        devices_.push_back(std::make_shared<Device>(problem_, tensors_[rank], seed + rank));
      } else {
        devices_.push_back(nullptr);
      }
    }
  }

  [[nodiscard]] std::uint32_t size() const { return ranks_.size(); }
  [[nodiscard]] support::InprocRanks& ranks() { return ranks_; }
  [[nodiscard]] Device& device(std::uint32_t rank) { return *devices_.at(rank); }
  [[nodiscard]] const support::SharedEnding& ending(std::uint32_t rank) const {
    return endings_.at(rank);
  }
  [[nodiscard]] const support::Tensor& tensor(std::uint32_t rank) const {
    return tensors_.at(rank);
  }
  /// The test's own hold on a device is let go.
  [[nodiscard]] std::weak_ptr<Device> release(std::uint32_t rank) {
    return std::exchange(devices_.at(rank), nullptr);
  }

  void call() {
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      if (devices_[rank] == nullptr) {
        endings_.push_back(
            ranks_.submit(rank, support::sparse_all_reduce(problem_, tensors_[rank])));
        continue;
      }
      engine::OperationSpec spec(devices_[rank]->begin_and_call());
      spec.keepalive = devices_[rank];
      endings_.push_back(ranks_.submit(rank, std::move(spec)));
    }
  }
  /// Until all have ended; devices work now and then.
  void run() {
    ranks_.run_until([this] {
      for (const auto& device : devices_) {
        if (device != nullptr && ranks_.fabric().pick(3) == 0) {
          device->work();
        }
      }
      return std::ranges::all_of(endings_,
                                 [](const support::SharedEnding& each) { return each->ended; });
    });
  }
  /// By what algorithm it was, which differs() goes by.
  void was(const std::string& algorithm) { problem_.options.algorithm = algorithm; }
  /// Commits, and compares everything with the reference; empty, or what differs.
  [[nodiscard]] std::string differs() {
    const reference::Outcome expected = reference::all_reduce(problem_);
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      if (!endings_[rank]->good()) {
        return fmt::format("rank {}: {}", rank, endings_[rank]->text());
      }
      if (devices_[rank] != nullptr) {
        devices_[rank]->commit();
      }
      const support::Tensor& seen = tensors_[rank];
      std::string wrong = reference::difference(problem_.type, expected.tensor, seen.values);
      if (wrong.empty() && seen.residual) {
        wrong = reference::difference(accumulation_type(problem_.type),
                                      expected.residuals[rank].value(), *seen.residual);
      }
      if (!wrong.empty()) {
        return fmt::format("rank {}: {}", rank, wrong);
      }
    }
    return {};
  }

 private:
  support::InprocRanks ranks_;
  reference::Problem problem_;
  std::vector<support::Tensor> tensors_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<support::SharedEnding> endings_;
};

inline std::vector<bool> all(std::uint32_t ranks) { return std::vector<bool>(ranks, true); }

/// A case with k entries on each rank, all different from each other's.
inline reference::Problem plain(std::uint32_t ranks, std::uint64_t d, std::uint64_t k,
                                const std::string& algorithm, const std::string& wire = "raw") {
  reference::Problem problem;
  problem.d = d;
  problem.options.k = k;
  problem.options.wire = wire;
  problem.options.algorithm = algorithm;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<float> values(d);
    for (std::uint64_t i = 0; i < d; ++i) {
      values[i] = static_cast<float>(1 + (i * 7919 + std::uint64_t{rank} * 104729) % 100'003);
    }
    const auto bytes = std::as_bytes(std::span(values));
    reference::Input input;
    input.gradient.assign(bytes.begin(), bytes.end());
    input.residual.emplace(d * sizeof(float));
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

}  // namespace gtopk::sparse::testing
