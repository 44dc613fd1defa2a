/// @file
/// How a rank finds its own entries, as numbers. A device that follows them finds the same entries
/// as the selector's own code. See detached.hpp and docs/algorithms.md.
#pragma once

#include <cstdint>
#include <optional>

#include "gtopk/types.hpp"

namespace gtopk {

/// Which entries a rank selects. Members that a kind does not mention are 0.
struct SelectionRule {
  /// How the entries are found.
  enum class Kind : std::uint32_t {
    kExact,      ///< the first k in the selection order
    kNormal,     ///< `gaussian`: magnitudes from mean + deviation * quantile, corrected
    kSample,     ///< `sampled`: from the rank-th largest of every stride-th element, corrected
    kThreshold,  ///< `threshold` with a state: from the last threshold, corrected, or the first k
    kBlocks,  ///< `block`: the first k of every `block` elements, k_of_last of a shorter last block
  };

  Kind kind = Kind::kExact;  ///< how the entries are found
  std::uint64_t k = 0;       ///< entries to select; for kBlocks, per block
  /// The largest number of entries found.
  std::uint64_t most = 0;
  double quantile = 0;          ///< for kNormal, in standard deviations
  std::uint64_t stride = 0;     ///< for kSample, the distance between elements of the sample
  std::uint64_t rank = 0;       ///< for kSample, the threshold's rank in the sample, from 1
  std::uint64_t block = 0;      ///< for kBlocks, elements per block
  std::uint64_t k_of_last = 0;  ///< for kBlocks, entries of a shorter last block, or 0
};

/// How a call's selector finds its entries; nullopt exactly where detached_capacity() and
/// auto_capacity() return nullopt. Throws Error{kInvalidArgument} for an invalid call.
[[nodiscard]] std::optional<SelectionRule> selection_rule(std::uint64_t d, DataType dtype,
                                                          const SparseOptions& options);

}  // namespace gtopk
