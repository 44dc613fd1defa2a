/// @file
/// A sparse all-reduce in which no rank selects (`dense`, `true-topk`, `random-k`, `sketch`), for a
/// tensor and a residual that stay on a device. Before the operation starts, the device writes the
/// values that ranks sum to pinned memory; at the end it applies the result. Ranks of one group may
/// mix such calls and ordinary ones. The functions are in collectives.hpp.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "gtopk/detached.hpp"

namespace gtopk {

/// Reads acc while the operation runs. Its functions are called on the engine's thread. They must
/// not block it, but may call the driver. Only one piece of work runs at a time.
class AccDevice {
 public:
  /// Must be called once, on any thread, when the device has done the work: with null on success,
  /// or with the error that prevented it.
  using Done = std::function<void(std::exception_ptr)>;

  AccDevice() = default;
  AccDevice(const AccDevice&) = delete;
  AccDevice& operator=(const AccDevice&) = delete;
  AccDevice(AccDevice&&) = delete;
  AccDevice& operator=(AccDevice&&) = delete;
  virtual ~AccDevice() = default;

  /// Used by `auto`. Writes all of acc to AccOnDevice::sums.
  virtual void accumulate(Done done) = 0;
  /// Used by `sketch`, once the cells in AccOnDevice::sums are summed over all ranks and finite.
  /// Finds the first AccCapacity::candidates of all elements in the selection order of their
  /// estimates. Writes them, ascending by index and with acc as values, to AccOnDevice::candidates,
  /// and sets `finite` and `report`.
  virtual void find(Done done) = 0;
};

/// The memory that a call needs, and what it must hold when the operation starts. `seed` is
/// options.seed, or else the operation's number in its group.
struct AccCapacity {
  /// Whether the sums contain all of acc.
  bool whole = false;
  /// Whether delivered.indices are those of draw_indices() and delivered.values holds acc at these
  /// indices.
  bool drawn = false;
  /// The number of values that ranks sum: d if `whole`, or the number of cells of a sketch.
  std::uint64_t sums = 0;
  /// The most entries of the result. 0 means that the result is all of the sums.
  std::uint64_t delivered = 0;
  /// Columns of the sketch of acc; the seed determines its hashes. The cells are in the sums, row
  /// by row, and all are NaN if any element of acc is not finite. 0 means that there is no sketch.
  std::uint64_t columns = 0;
  /// The most elements that are found in the sketch.
  std::uint64_t candidates = 0;
  std::uint32_t index_bytes = 4;  ///< 4, or 8 for indices that need more

  /// Whether the input depends on the seed.
  [[nodiscard]] bool needs_seed() const { return drawn || columns != 0; }
};

/// All pointers are to pinned memory that is valid until the operation is destroyed. Before the
/// operation ends, it writes what the caller then applies to a residual that holds acc and a tensor
/// of zeros. At each delivered index, the residual and the momentum become 0, and the tensor
/// becomes the value there, after division by detached_divisor() and rounding. For `dense`, this
/// applies to every index, with the values in `sums`, and the momentum is unchanged.
struct AccOnDevice {
  /// Used by `sketch` and `auto` while the operation runs.
  AccDevice* device = nullptr;
  void* sums = nullptr;  ///< for `auto`, written by AccDevice::accumulate()
  /// Written by AccDevice::find().
  DetachedEntries candidates;
  /// The result, unless the result is all of the sums. With AccCapacity::drawn, it is filled from
  /// the start.
  DetachedEntries delivered;
  /// Set when acc is read at indices: 0 if any element of acc is not finite, whether it was read or
  /// not.
  const std::uint64_t* finite = nullptr;
  /// The number of candidates.
  const SelectionReport* report = nullptr;
  EditCounts* counts = nullptr;  ///< nothing is returned
};

/// For a call that leaves its algorithm to `auto`, which chooses while the operation runs: either
/// ranks select, or they sum all of acc, which the device then provides. If acc.sums is 0, they
/// always select.
struct AutoCapacity {
  DetachedCapacity lists;  ///< needed if ranks select
  AccCapacity acc;         ///< needed if they sum all of acc
};

/// If acc.counts says that its step happened, the caller applies acc, as for `dense`; otherwise it
/// applies what lists.counts says.
struct AutoOnDevice {
  Detached lists;   ///< used if ranks select
  AccOnDevice acc;  ///< used if they sum all of acc
};

}  // namespace gtopk
