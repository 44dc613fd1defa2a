// Public surface: a sparse all-reduce whose tensor and residual lie where the core does not come,
// on a device. Somebody else selects there, and applies there what the core has worked out: only
// lists of entries pass between the two, in memory of the host's. Any rank may call it so while
// others call it as usual. The calls are among the collectives (collectives.hpp).
#pragma once

#include <cstdint>

namespace gtopk {

/// What a selection has found.
struct SelectionReport {
  std::uint64_t kept = 0;
  std::uint64_t dropped = 0;  ///< entries that are neither kept nor zero, of those looked at
  std::uint64_t finite = 0;   ///< 0: acc was not; nothing is kept then
};

/// How many entries of each kind there are to apply.
struct EditCounts {
  /// 0: the step did not happen: the tensor becomes NaN, and nothing else is applied.
  std::uint64_t happened = 0;
  std::uint64_t cleared = 0;
  std::uint64_t returned = 0;
  std::uint64_t delivered = 0;
};

/// The most entries of each list, and how wide their indices are.
struct DetachedRoom {
  std::uint64_t selected = 0;
  std::uint64_t cleared = 0;
  std::uint64_t returned = 0;
  std::uint64_t delivered = 0;
  std::uint32_t index_bytes = 4;
};

/// Entries are indices (of 4 or 8 bytes) and values (of the accumulation type), in two arrays.
struct DetachedEntries {
  void* indices = nullptr;
  void* values = nullptr;
};

/// Read when the operation starts (Call::input): the `exact` selection of acc = gradient +
/// residual. Written before it ends: what is applied to the residual, which has become acc, and to
/// the tensor, which has become zeros, in this order.
struct Detached {
  DetachedEntries selected;
  const SelectionReport* report = nullptr;

  /// Indices at which residual and momentum become 0.
  void* cleared = nullptr;
  /// Ascending, an index as often as something comes back to it, in that order: added to the
  /// residual.
  DetachedEntries returned;
  /// The tensor's, to be divided by divisor() and rounded.
  DetachedEntries delivered;
  EditCounts* counts = nullptr;
};

}  // namespace gtopk
