// Numbers: numbers drawn from a seed that ranks share, the same on every machine, and hashes.
#pragma once

#include <cstdint>

namespace gtopk {

/// SplitMix64's output function (Steele et al., 2014).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31U);
}

/// Returns number i = 1, 2, ... of the sequence drawn from a seed.
[[nodiscard]] constexpr std::uint64_t drawn(std::uint64_t seed, std::uint64_t i) {
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
  return mix(seed + i * kStep);
}

}  // namespace gtopk
