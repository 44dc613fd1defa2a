// Sparse, algorithms: how a dense vector is cut into blocks, and the blocks into a region for each
// rank, on a wire that codes blocks. This is pure arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gtopk/types.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/wire/block_coder.hpp"

namespace gtopk::sparse {

class CodedRegions {
 public:
  /// Cuts d elements of the accumulation type `value`.
  CodedRegions(const BlockCoder& coder, DataType value, std::uint64_t d, std::uint32_t ranks)
      : coder_(&coder), value_(value), d_(static_cast<std::size_t>(d)), ranks_(ranks) {}

  [[nodiscard]] const BlockCoder& coder() const { return *coder_; }
  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }
  /// The first element of a rank's region; d for the number of ranks.
  [[nodiscard]] std::size_t begin(std::uint32_t rank) const {
    const std::size_t block = coder_->block();
    const std::uint64_t blocks = d_ / block + (d_ % block == 0 ? 0 : 1);
    return std::min(
        d_, static_cast<std::size_t>(collectives::chunk_begin(blocks, ranks_, rank) * block));
  }
  [[nodiscard]] std::size_t size(std::uint32_t rank) const { return begin(rank + 1) - begin(rank); }
  /// The bytes of the code of that region; 0 if it is empty.
  [[nodiscard]] std::size_t bytes(std::uint32_t rank) const { return bytes_of(size(rank)); }
  /// The bytes of the code of this many elements, which start at a block.
  [[nodiscard]] std::size_t bytes_of(std::size_t count) const {
    return coder_->bytes(value_, count);
  }
  /// The most bytes of any region's code. No region has more blocks than the last one.
  [[nodiscard]] std::size_t most_bytes() const {
    return bytes_of((size(ranks_ - 1) + coder_->block() - 1) / coder_->block() * coder_->block());
  }

 private:
  const BlockCoder* coder_;
  DataType value_;
  std::size_t d_;
  std::uint32_t ranks_;
};

}  // namespace gtopk::sparse
