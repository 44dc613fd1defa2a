// gtopk-allreduce: gradients that every rank can compute for every rank, the same on every machine,
// and the memory for one rank's calls. It does not know groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtopk/types.hpp"

namespace gtopk::programs::allreduce {

/// Returns n elements of dtype, heavy-tailed and of both signs, like gradients.
[[nodiscard]] std::vector<std::byte> gradient(DataType dtype, std::uint64_t n, std::uint32_t rank);

/// How much memory a Tensor of n elements takes.
[[nodiscard]] std::uint64_t bytes_needed(std::uint64_t n, DataType dtype);

/// One rank's gradient, the tensor that is reduced, and its residual.
struct Tensor {
  Tensor(DataType dtype, std::uint64_t n, std::uint32_t rank);
  /// Sets the next step's gradient, which is the same as the last one's.
  void refill() { values = gradients; }

  std::vector<std::byte> gradients;
  std::vector<std::byte> values;
  std::vector<std::byte> residual;
  SelectorState state{};
};

/// Returns a checksum; equal bytes have equal checksums on every machine.
[[nodiscard]] std::uint64_t checksum(const std::vector<std::byte>& bytes);

}  // namespace gtopk::programs::allreduce
