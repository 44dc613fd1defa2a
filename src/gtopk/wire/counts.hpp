// Sparse, wire: codes how many ranks are in each entry of a list. The running sums of these numbers
// ascend like indices and are coded like them (rice.hpp), which takes about a bit per entry if most
// numbers are 1. It does not know values or indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/gtopk/value/growing_buffer.hpp"

namespace gtopk::sparse::counts {

/// The bytes to which encode() may write, for this many entries in a group of this many ranks.
[[nodiscard]] std::size_t capacity_for(std::size_t entries, std::uint64_t ranks);

/// The bytes that encode() returns if every count is 1.
[[nodiscard]] std::size_t fewest_bytes(std::size_t entries);

/// Encodes counts, which must be at least 1. Returns how many bytes of `out` the code takes.
[[nodiscard]] std::size_t encode(const std::uint32_t* counts, std::size_t entries,
                                 GrowingBuffer& scratch, std::byte* out);

/// Decodes counts. Reads nothing but `code`. Throws Damaged unless it is what encode() writes for
/// `entries` counts from 1 to `ranks`; `counts` are undefined then.
void decode(std::span<const std::byte> code, std::uint32_t* counts, std::size_t entries,
            std::uint64_t ranks, GrowingBuffer& scratch);

}  // namespace gtopk::sparse::counts
