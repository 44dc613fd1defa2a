// Sparse, device room: bits of a message in the device's memory, which fill words from the lowest.
// Many threads read them, and many write them at the same time. It knows no code.
#pragma once

#include <bit>
#include <cstdint>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/wire/rice_rules.hpp"

namespace gtopk::sparse::device {

[[nodiscard]] GTOPK_HOST_DEVICE inline unsigned count_bits(std::uint64_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<unsigned>(__popcll(bits));
#else
  return static_cast<unsigned>(std::popcount(bits));
#endif
}

/// The lowest bit that is set; there is one.
[[nodiscard]] GTOPK_HOST_DEVICE inline unsigned lowest_bit(std::uint64_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<unsigned>(__ffsll(static_cast<long long>(bits))) - 1;
#else
  return static_cast<unsigned>(std::countr_zero(bits));
#endif
}

/// Less than 64 bits from bit `at` on. Only whole words are read, and none without a bit of these.
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t bits_at(const std::uint64_t* words,
                                                             std::uint64_t at, std::uint32_t bits) {
  if (bits == 0) {
    return 0;
  }
  const std::uint64_t word = at / 64;
  const auto shift = static_cast<std::uint32_t>(at % 64);
  std::uint64_t value = words[word] >> shift;
  if (shift + bits > 64) {
    value |= words[word + 1] << (64 - shift);
  }
  return value & rice::low_mask(bits);
}

/// Bits [begin, end) of a message, by its words: zeros outside.
struct BitStream {
  const std::uint64_t* words = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t first_word() const { return begin / 64; }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t word(std::uint64_t number) const {
    if (number * 64 >= end) {
      return 0;
    }
    std::uint64_t word = words[number];
    if (number == first_word()) {
      word &= ~rice::low_mask(static_cast<std::uint32_t>(begin % 64));
    }
    if (number == end / 64) {
      word &= rice::low_mask(static_cast<std::uint32_t>(end % 64));
    }
    return word;
  }
};

/// Up to 32 (Words - 1) bits that a block of threads writes together: gathered in shared memory,
/// and written word by word. Only its first and last word may have bits of other blocks'.
template <unsigned Words>
struct BitStage {
  std::uint32_t words[Words];

  GTOPK_HOST_DEVICE void clear(unsigned thread) {
    for (unsigned word = thread; word < Words; word += kThreads) {
      words[word] = 0;
    }
  }
  /// Of a stretch from bit `begin` on: less than 64 bits from bit `at` on, nothing above them.
  GTOPK_HOST_DEVICE void put(std::uint64_t begin, std::uint64_t at, std::uint64_t value,
                             std::uint32_t bits) {
    auto word = static_cast<unsigned>(at / 32 - begin / 32);
    auto shift = static_cast<std::uint32_t>(at % 32);
    for (std::uint32_t done = 0; done < bits;) {
      set_bits(words[word], static_cast<std::uint32_t>(value >> done) << shift);
      done += 32 - shift;
      shift = 0;
      ++word;
    }
  }
  /// Into zeros; `end`: of the stretch.
  GTOPK_HOST_DEVICE void write(unsigned thread, std::uint64_t begin, std::uint64_t end,
                               std::uint32_t* to) const {
    const std::uint64_t first = begin / 32;
    const auto count = static_cast<unsigned>((end + 31) / 32 - first);
    for (unsigned word = thread; word < count; word += kThreads) {
      if (word == 0 || word + 1 == count) {
        set_bits(to[first + word], words[word]);
      } else {
        to[first + word] = words[word];
      }
    }
  }
};

}  // namespace gtopk::sparse::device
