/// @file
/// A sparse all-reduce in which no rank selects (`dense`, `true-topk`, `random-k`, `sketch`), of a
/// tensor and a residual that stay on a device. The device writes what ranks sum first to pinned
/// memory before the operation starts, and applies the result. Ranks of one group may mix such
/// calls and ordinary ones. The functions are in collectives.hpp.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "gtopk/detached.hpp"

namespace gtopk {

/// Reads acc while the operation runs. Called on the engine's thread, which it must not block,
/// though it may call the driver. Only one piece of work runs at a time.
class AccDevice {
 public:
  /// To be called once, on any thread, when the device has done the work: with null, or with the
  /// error that prevented it.
  using Done = std::function<void(std::exception_ptr)>;

  AccDevice() = default;
  AccDevice(const AccDevice&) = delete;
  AccDevice& operator=(const AccDevice&) = delete;
  AccDevice(AccDevice&&) = delete;
  AccDevice& operator=(AccDevice&&) = delete;
  virtual ~AccDevice() = default;

  /// For a call of `auto`: writes all of acc to AccOnDevice::sums.
  virtual void accumulate(Done done) = 0;
  /// For `sketch`, once the cells in AccOnDevice::sums are summed over all ranks, and finite: finds
  /// the first AccCapacity::candidates of all elements in the selection order of their estimates.
  /// Writes them, ascending by index and with acc as values, to AccOnDevice::candidates, and sets
  /// `finite` and `report`.
  virtual void find(Done done) = 0;
};

/// What a call needs, and what must be there when its operation starts. `seed` is options.seed, or
/// else the operation's number in its group.
struct AccCapacity {
  /// The sums contain all of acc.
  bool whole = false;
  /// delivered.indices are those of draw_indices(), and delivered.values is acc there.
  bool drawn = false;
  /// Values that ranks sum: d if `whole`, the cells of a sketch.
  std::uint64_t sums = 0;
  /// The most entries of the result. 0: the result is all of the sums.
  std::uint64_t delivered = 0;
  /// Columns of the sketch of acc, with the hashes that follow from the seed; its cells are in the
  /// sums, row after row, all NaN if any acc is not finite. 0: there is no sketch.
  std::uint64_t columns = 0;
  /// The most elements that are found in the sketch.
  std::uint64_t candidates = 0;
  std::uint32_t index_bytes = 4;  ///< 4, or 8 for indices that need more

  /// Whether the input depends on the seed.
  [[nodiscard]] bool needs_seed() const { return drawn || columns != 0; }
};

/// In pinned memory, valid until the operation is destroyed. Before the operation ends, it writes
/// what the caller then applies to a residual that holds acc and a tensor of zeros. At each
/// delivered index, the residual and the momentum become 0, and the tensor becomes the value there,
/// after division by detached_divisor() and rounding. For `dense` this covers all of `sums`,
/// everywhere, and the momentum stays.
struct AccOnDevice {
  /// Used while the operation runs, by a sketch and by `auto`.
  AccDevice* device = nullptr;
  void* sums = nullptr;  ///< for `auto`, written when the device is asked to
  /// Written by AccDevice::find().
  DetachedEntries candidates;
  /// The result, unless that is all of the sums. With AccCapacity::drawn, filled from the start.
  DetachedEntries delivered;
  /// Set by reading acc at indices: 0 if any of acc is not finite, whether read or not.
  const std::uint64_t* finite = nullptr;
  /// How many candidates there are.
  const SelectionReport* report = nullptr;
  EditCounts* counts = nullptr;  ///< nothing is returned
};

/// For a call that leaves its algorithm to `auto`, which chooses while the operation runs: either
/// ranks select, or they sum all of acc, which the device then provides. Without sums, they select.
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
