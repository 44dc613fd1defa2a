// gtopk-allreduce: gradients that any rank can make of any rank, the same on every machine, and the
// memory of one rank's calls. It knows no group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtopk/types.hpp"

namespace gtopk::programs::allreduce {

/// n elements of dtype, heavy-tailed and of both signs, as gradients are.
[[nodiscard]] std::vector<std::byte> gradient(DataType dtype, std::uint64_t n, std::uint32_t rank);

/// What Tensor takes of n elements.
[[nodiscard]] std::uint64_t bytes_needed(std::uint64_t n, DataType dtype);

/// One rank's gradient, the tensor that is reduced, and its residual.
struct Tensor {
  Tensor(DataType dtype, std::uint64_t n, std::uint32_t rank);
  /// The next step's gradient, which is the last one's.
  void refill() { values = gradients; }

  std::vector<std::byte> gradients;
  std::vector<std::byte> values;
  std::vector<std::byte> residual;
  SelectorState state{};
};

/// Equal for equal bytes, whatever the machine.
[[nodiscard]] std::uint64_t checksum(const std::vector<std::byte>& bytes);

}  // namespace gtopk::programs::allreduce
