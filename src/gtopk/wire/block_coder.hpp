// Sparse, wire: codes a dense vector, or a part of it that begins with a block: every value, and no
// indices. It is pure and does not know ranks.
#pragma once

#include <cstddef>

#include "gtopk/types.hpp"

namespace gtopk::sparse {

/// A coder of blocks. For every block, encoding the output of decode() gives the same bytes. A
/// block of zeros decodes to +0, and no value decodes to -0. A block in which a value is not
/// finite, or overflows, decodes to NaN.
class BlockCoder {
 public:
  virtual ~BlockCoder() = default;

  /// The number of elements of a block; the last block of a vector may be shorter.
  [[nodiscard]] virtual std::size_t block() const = 0;
  /// The number of bytes that this many elements of float32 or float64 take.
  [[nodiscard]] virtual std::size_t bytes(DataType value, std::size_t count) const = 0;

  virtual void encode(const float* values, std::size_t count, std::byte* out) const = 0;
  virtual void encode(const double* values, std::size_t count, std::byte* out) const = 0;
  virtual void decode(const std::byte* in, std::size_t count, float* values) const = 0;
  virtual void decode(const std::byte* in, std::size_t count, double* values) const = 0;
};

/// The coders of the wires of the same names (docs/algorithms.md, Dense, coded).
[[nodiscard]] const BlockCoder& bf16_blocks();
[[nodiscard]] const BlockCoder& fp16_blocks();
[[nodiscard]] const BlockCoder& int8_blocks();
[[nodiscard]] const BlockCoder& four_bit_blocks();
[[nodiscard]] const BlockCoder& two_bit_blocks();
[[nodiscard]] const BlockCoder& ternary_blocks();
[[nodiscard]] const BlockCoder& sign_blocks();

}  // namespace gtopk::sparse
