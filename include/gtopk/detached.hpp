/// @file
/// A sparse all-reduce whose tensor and residual are on a device, out of the core's reach. The
/// caller selects there, and applies there what the core computes; the two exchange only lists of
/// entries, in host memory. Ranks of one group may mix detached and ordinary calls. The functions
/// are in collectives.hpp.
#pragma once

#include <cstdint>

#include "gtopk/types.hpp"

namespace gtopk {

/// The outcome of a selection.
struct SelectionReport {
  std::uint64_t kept = 0;     ///< entries selected
  std::uint64_t dropped = 0;  ///< nonzero entries among those examined that were not kept
  std::uint64_t finite = 0;   ///< 0 if acc was not finite; nothing is kept then
};

/// How many entries of each kind are to be applied.
struct EditCounts {
  /// If 0, the step did not happen: the tensor becomes NaN, and nothing else is applied.
  std::uint64_t happened = 0;
  std::uint64_t cleared = 0;    ///< indices in Detached::cleared
  std::uint64_t returned = 0;   ///< entries in Detached::returned
  std::uint64_t delivered = 0;  ///< entries in Detached::delivered
};

/// The most entries of each list, and the width of their indices.
struct DetachedCapacity {
  std::uint64_t selected = 0;     ///< entries of Detached::selected
  std::uint64_t cleared = 0;      ///< indices of Detached::cleared
  std::uint64_t returned = 0;     ///< entries of Detached::returned
  std::uint64_t delivered = 0;    ///< entries of Detached::delivered
  std::uint32_t index_bytes = 4;  ///< 4, or 8 for indices that need more
};

/// Entries: indices (of 4 or 8 bytes) and values (of the accumulation type), in two arrays.
struct DetachedEntries {
  void* indices = nullptr;  ///< ascending unsigned integers
  void* values = nullptr;   ///< one per index, in the same order
};

/// When the operation starts (Call::input), it reads the entries of acc = gradient + residual that
/// the call's rule selects (selection_rule.hpp). Before it ends, it writes the edits that the
/// caller then applies, in this order, to a residual that holds acc and a tensor of zeros.
struct Detached {
  DetachedEntries selected;                 ///< the caller's selection
  const SelectionReport* report = nullptr;  ///< how many entries were selected
  /// The new value of options.state if the step happens; null means zeros.
  const SelectorState* next = nullptr;

  /// The indices at which residual and momentum become 0.
  void* cleared = nullptr;
  /// Entries that are added to the residual, in this order. Indices are ascending; one may occur
  /// several times.
  DetachedEntries returned;
  /// Entries that are written to the tensor, after division by detached_divisor() and rounding.
  DetachedEntries delivered;
  EditCounts* counts = nullptr;  ///< written: how many entries of each list to apply
};

}  // namespace gtopk
