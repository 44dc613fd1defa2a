// Sparse, device: samples of every n-th element of acc, and the threshold with which a sweep
// begins, which is found in such a sample.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

/// Every stride-th element of acc.
template <class T>
struct SampleSource {
  Pieces<T> acc;
  std::uint64_t stride;
  std::uint64_t size;  // size of the sample

  struct View {
    const Pieces<T>& acc;
    std::uint64_t stride;
    std::uint64_t begin;
    unsigned size;

    [[nodiscard]] GTOPK_HOST_DEVICE Accumulation<T> value(std::size_t i) const {
      return Run<T>(acc, begin + i * stride, 1).acc(0);
    }
  };

  template <class Use>
  GTOPK_HOST_DEVICE void with_source(Use use) const {
    use(*this);
  }
  [[nodiscard]] std::uint64_t most_loose_tiles() const { return loose_tiles(); }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t loose_tiles() const {
    return tiles_of<kThreads>(size);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE View open_loose(std::uint64_t tile) const {
    const std::uint64_t first = tile * kThreads;
    return {acc, stride, acc.pieces[0].begin + first * stride,
            static_cast<unsigned>(least<std::uint64_t>(kThreads, size - first))};
  }
};

/// Describes a threshold that between k and `capacity` of d elements reach: the rank-th largest in
/// a sample of every stride-th element.
struct Guess {
  std::uint64_t stride;
  std::uint64_t size;  // size of the sample
  std::uint64_t rank;

  /// Aims at the geometric mean of k and `capacity`. Unless its size is capped, the sample has
  /// about a hundred elements or more above the k-th, so the count is usually off by less than a
  /// tenth. An odd stride meets every column of a matrix.
  [[nodiscard]] static Guess of(std::uint64_t d, std::uint64_t k, std::uint64_t capacity) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 18U;
    if (d == 0 || k == 0) {
      return {1, d, 1};
    }
    Guess guess{};
    const std::uint64_t most = d / 2048 < kMost ? kMost : d / 2048;
    guess.stride = (d / least(d, least(most, 128 * (d / k + 1)))) | 1U;
    guess.size = (d + guess.stride - 1) / guess.stride;
    const double aim = std::sqrt(static_cast<double>(k) * static_cast<double>(capacity));
    const double rank = aim * static_cast<double>(guess.size) / static_cast<double>(d);
    guess.rank = rank < 1 ? 1 : static_cast<std::uint64_t>(rank + 0.5);
    return guess;
  }
};

}  // namespace gtopk::sparse::device
