// Tests, device: a vector and its residual as kernels see them, in pieces or in one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "tests/gtopk/value/cut.hpp"

namespace gtopk::sparse::testing {

/// The memory of an arena, filled with garbage.
class DeviceMemory {
 public:
  template <class Take>
  explicit DeviceMemory(Take take) {
    device::Arena measured(nullptr);
    (void)take(measured);
    memory_.assign(measured.taken(), std::byte{0xA5});
  }
  [[nodiscard]] device::Arena arena() { return device::Arena(memory_.data()); }

 private:
  std::vector<std::byte> memory_;
};

/// Copies a vector into random pieces, or one.
template <class T>
class InPieces {
 public:
  /// `residual`: as long, or empty; it stays where it is. The first element is number `begin`.
  InPieces(const std::vector<T>& whole, std::vector<Accumulation<T>>& residual, bool cut,
           std::mt19937_64& random, std::uint64_t begin = 0)
      : copies_(whole,
                cut ? random_cuts(whole.size(), 1 + whole.size(), random)
                    : std::vector<std::size_t>{whole.size()},
                random) {
    std::size_t done = 0;
    for (const Segment& each : copies_.pieces()) {
      if (each.size != 0) {
        device::Piece<T>& piece = pieces_.emplace_back();
        piece.tensor = static_cast<T*>(each.data);
        piece.residual = residual.empty() ? nullptr : residual.data() + done;
        piece.size = each.size;
      }
      done += each.size;
    }
    tiles_ = device::number_tiles(pieces_.data(), pieces_.size(), begin);
  }

  [[nodiscard]] device::Pieces<T> view() const {
    return {pieces_.data(), static_cast<std::uint32_t>(pieces_.size()), tiles_};
  }
  [[nodiscard]] std::vector<T> joined() const { return copies_.joined(); }

 private:
  Cut<T> copies_;
  std::vector<device::Piece<T>> pieces_;
  std::uint64_t tiles_ = 0;
};

}  // namespace gtopk::sparse::testing
