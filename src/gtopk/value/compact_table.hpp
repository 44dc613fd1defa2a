// Sparse, value: a table that says, for each set of picked lanes, which lane goes where when they
// are packed to the left. It does not depend on the SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gtopk::sparse {

/// Rows of up to 8 lanes of 32 bits or 4 lanes of 64 bits (256-bit vectors); narrower vectors use
/// the beginning of the rows whose upper bits are zero.
template <class Lane>
struct PackingOrders {
  static constexpr std::size_t kLanes = 32 / sizeof(Lane);
  static constexpr std::size_t kRows = std::size_t{1} << kLanes;

  struct Table {
    alignas(64) Lane rows[kRows][kLanes] = {};

    constexpr Table() {
      for (std::size_t bits = 0; bits < kRows; ++bits) {
        std::size_t packed = 0;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
          if ((bits >> lane & 1U) != 0) {
            rows[bits][packed++] = static_cast<Lane>(lane);
          }
        }
      }
    }
    [[nodiscard]] constexpr const Lane* at(std::size_t bits) const { return rows[bits]; }
  };

  static constexpr Table kTable{};
};

}  // namespace gtopk::sparse
