// Sparse, algorithms: the arithmetic of `dense` on a wire that codes blocks: one rank's acc is
// coded, its region summed, and the results written. This module sends nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/coded_regions.hpp"

namespace gtopk::sparse {

/// The memory of one call's codes.
struct CodedSums {
  CodedRegions regions;
  /// The region that this rank owns, or the number of regions if it owns none.
  std::uint32_t own_region = 0;
  /// The number of ranks in the group, which may be more than the number of regions.
  std::uint32_t ranks = 1;
  /// The sum of a host's accs, in the accumulation type, which replaces this rank's acc; or null.
  void* host_acc = nullptr;
  /// The code of this rank's acc, region by region; empty if it owns no region.
  std::span<std::byte> own{};
  /// For each region, memory for a code: first the code of this rank's region in the acc of that
  /// region's owner, then the code of that region's sum.
  std::span<std::byte> others{};
  /// The sums of this rank's region, before they are coded.
  std::span<std::byte> sums{};

  [[nodiscard]] std::span<std::byte> own_code(std::uint32_t region) const {
    return own.subspan(regions.bytes_of(regions.begin(region)), regions.bytes(region));
  }
  /// Memory for another owner's code of this rank's region.
  [[nodiscard]] std::span<std::byte> contribution(std::uint32_t from) const {
    return buffer_of(from).first(regions.bytes(own_region));
  }
  [[nodiscard]] std::span<std::byte> sum_code(std::uint32_t region) const {
    return buffer_of(region).first(regions.bytes(region));
  }

 private:
  [[nodiscard]] std::span<std::byte> buffer_of(std::uint32_t of) const {
    const std::size_t each = others.size() / regions.ranks();
    return others.subspan(of * each, each);
  }
};

/// Codes one region of acc.
void code_acc(const SparseCall& call, const CodedSums& codes, std::uint32_t region);

/// Adds up the contributions to this rank's region in their owners' order, including its own, and
/// codes the sum. The code represents NaN if a sum, or the part of it that remains in the residual,
/// is not finite.
void code_sum(const SparseCall& call, const CodedSums& codes);

/// Whether every sum, divided and rounded to the tensor's type, is finite.
[[nodiscard]] bool sums_are_finite(const SparseCall& call, const CodedSums& codes);

/// Writes the sums to the tensor, and writes to the residual what coding lost of acc and of the sum
/// of this rank's region. A rank that owns no region has passed its acc on, and keeps nothing.
void commit_sums(const SparseCall& call, const CodedSums& codes);

}  // namespace gtopk::sparse
