// gtopk-pingpong: rounds of messages of one size over a wire, timed on the rank that measures. It
// prints nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/programs/gpu.hpp"
#include "tools/programs/pingpong/buffer.hpp"
#include "tools/programs/pingpong/options.hpp"
#include "tools/programs/pingpong/wire.hpp"

namespace gtopk::programs::pingpong {

/// One of the two ranks.
class Player {
 public:
  /// Makes a player. `gpu` holds the messages; null means the host does.
  Player(Wire& wire, const Plan& plan, bool measures, const Gpu* gpu = nullptr)
      : wire_(&wire), plan_(&plan), measures_(measures), gpu_(gpu) {}

  /// Allocates buffers for messages of this size.
  void reserve(std::uint64_t bytes);
  /// Returns, for each round, the seconds that one message takes one way.
  [[nodiscard]] std::vector<double> measure();
  /// Returns the number of bytes that arrived wrong, in three rounds, on both ranks.
  [[nodiscard]] std::uint64_t check();
  /// Returns the measuring rank's value.
  [[nodiscard]] bool agree(bool value);

 private:
  void round();
  void window();
  [[nodiscard]] std::uint64_t wrong_bytes(std::uint64_t seed) const;

  Wire* wire_;
  const Plan* plan_;
  bool measures_;
  const Gpu* gpu_;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<MessageBuffer> sent_;
  std::unique_ptr<MessageBuffer> received_;
};

}  // namespace gtopk::programs::pingpong
