// Sparse, wire: codes ascending indices as bits. Gaps between them are Golomb-Rice coded, with a
// parameter for each block of entries. The code is close to the entropy of random indices, and is a
// bitmap if at least every second index is present. It does not know values.
//
//   parameters   one byte b for each block of 256 entries; the last may be shorter
//   low bits     the b lowest bits of each gap, one after the other
//   high bits    the rest of each gap in unary: that many zeros and a one
//
// A gap is the number of indices that are left out since the previous entry; b = floor(log2(mean
// gap + 1/2)) of its block, at least 0. Rice, "Some practical universal noiseless coding
// techniques", JPL 79-22, 1979. Bits fill bytes from the lowest; both streams end with zeros up to
// a whole byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gtopk::sparse::rice {

/// The bytes to which encode() may write for up to `count` indices below d, which are a few more
/// than it returns.
[[nodiscard]] std::size_t capacity_for(std::size_t count, std::uint64_t d);

/// Encodes indices. Returns how many bytes of `out` the code takes.
template <class Index>
[[nodiscard]] std::size_t encode(const Index* indices, std::size_t count, std::byte* out);

/// Decodes indices. Reads nothing but `code`. Throws Damaged unless it is what encode() writes for
/// `count` indices that ascend below d; `indices` are undefined then.
template <class Index>
void decode(std::span<const std::byte> code, Index* indices, std::size_t count, std::uint64_t d);

}  // namespace gtopk::sparse::rice
