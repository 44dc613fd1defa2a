// Sparse, wire: the numbers of an index code (rice.hpp). CPU and GPU share them, so that both
// write the same bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/numbers/host_device.hpp"

namespace gtopk::sparse::rice {

/// The number of entries that share a parameter.
inline constexpr std::size_t kBlock = 256;
inline constexpr std::uint32_t kWordBits = 64;

[[nodiscard]] GTOPK_HOST_DEVICE inline std::size_t blocks_of(std::size_t count) {
  return (count + kBlock - 1) / kBlock;
}
[[nodiscard]] GTOPK_HOST_DEVICE inline std::size_t bytes_of(std::uint64_t bits) {
  return static_cast<std::size_t>((bits + 7) / 8);
}
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t low_mask(std::uint32_t bits) {
  return (std::uint64_t{1} << bits) - 1;
}
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint32_t bit_width(std::uint64_t number) {
#ifdef __CUDA_ARCH__
  return kWordBits - static_cast<std::uint32_t>(__clzll(static_cast<long long>(number)));
#else
  return static_cast<std::uint32_t>(std::bit_width(number));
#endif
}

/// The Rice parameter of a block of n entries, the last of which is the `reach`-th index after the
/// previous block. b and b + 1 need equally many bits half an index below the mean.
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint32_t parameter(std::uint64_t reach, std::size_t n) {
  const std::uint64_t mean = (reach - n / 2) / n;
  return mean == 0 ? 0 : bit_width(mean) - 1;
}

}  // namespace gtopk::sparse::rice
