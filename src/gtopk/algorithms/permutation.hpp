// Sparse, algorithms: a permutation of [0, d) drawn from a seed, one element at a time and without
// memory: a Feistel network (Luby and Rackoff, 1988) over the next even number of bits, walked
// along its cycle until it is below d (Black and Rogaway, 2002). The permutation is the same on
// every machine.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/numbers/mix.hpp"

namespace gtopk::sparse {

class Permutation {
 public:
  /// Makes a permutation of [0, d); requires d >= 1.
  Permutation(std::uint64_t seed, std::uint64_t d)
      : d_(d), half_bits_((static_cast<unsigned>(std::bit_width(d - 1)) + 1) / 2) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      keys_[round] = drawn(seed, round + 1);
    }
  }

  /// The image of `element`, which is below d. Takes at most four steps on average.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t element) const {
    do {
      element = network(element);
    } while (element >= d_);
    return element;
  }

 private:
  static constexpr std::size_t kRounds = 6;

  [[nodiscard]] std::uint64_t network(std::uint64_t element) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = element >> half_bits_;
    std::uint64_t right = element & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (mix(key ^ right) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t d_;
  unsigned half_bits_;
  std::array<std::uint64_t, kRounds> keys_{};
};

}  // namespace gtopk::sparse
