// Public surface: a sparse all-reduce in which no rank selects (`dense`, `true-topk`, `random-k`,
// `sketch`), of a tensor and a residual that stay on a device. What ranks sum first is in pinned
// memory when the operation starts; the device has written it there, and applies the result. Ranks
// of one group may mix such calls and ordinary ones. The functions are in collectives.hpp.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "gtopk/detached.hpp"

namespace gtopk {

/// What reads acc while the operation runs. Called on the engine's thread, and must not block it: a
/// driver's function may. One piece of work at a time.
class AccDevice {
 public:
  /// To be called once, on any thread, when the device has done the work: with null, or with why it
  /// has not.
  using Done = std::function<void(std::exception_ptr)>;

  AccDevice() = default;
  AccDevice(const AccDevice&) = delete;
  AccDevice& operator=(const AccDevice&) = delete;
  AccDevice(AccDevice&&) = delete;
  AccDevice& operator=(AccDevice&&) = delete;
  virtual ~AccDevice() = default;

  /// Of a call of `auto`: writes all of acc to AccOnDevice::sums.
  virtual void accumulate(Done done) = 0;
  /// Of `sketch`, once the cells in AccOnDevice::sums are those of all ranks, and finite: the first
  /// AccCapacity::candidates of all elements in the selection order of their estimates, with acc
  /// there as values, in the order of the index; into AccOnDevice::candidates, `finite` and
  /// `report`.
  virtual void find(Done done) = 0;
};

/// What a call needs, and what is there when its operation starts. `seed` is options.seed, or else
/// the operation's number in its group.
struct AccCapacity {
  /// All of acc, in the sums.
  bool whole = false;
  /// The indices that draw_indices() gives, delivered.indices, and acc there, delivered.values.
  bool drawn = false;
  /// Values that ranks sum: d if `whole`, the cells of a sketch.
  std::uint64_t sums = 0;
  /// The most entries of the result. 0: the result is all of the sums.
  std::uint64_t delivered = 0;
  /// Of the sketch of acc, with the hashes that the seed gives; its cells are in the sums, row
  /// after row, all NaN if any acc is not finite. 0: there is none.
  std::uint64_t columns = 0;
  /// The most elements that are found in it.
  std::uint64_t candidates = 0;
  std::uint32_t index_bytes = 4;

  /// Whether what is there at the start depends on the seed.
  [[nodiscard]] bool needs_seed() const { return drawn || columns != 0; }
};

/// In pinned memory, valid until the operation is destroyed. Written before the operation ends:
/// what the caller then applies to a residual that holds acc and a tensor of zeros. The residual
/// and the momentum become 0 at each delivered index, and the tensor the value there, after
/// division by detached_divisor() and rounding. Of `dense` that is all of `sums`, everywhere, and
/// the momentum stays.
struct AccOnDevice {
  /// Asked while the operation runs; of a sketch, and of `auto`.
  AccDevice* device = nullptr;
  void* sums = nullptr;  ///< of `auto` they are written when the device is asked to
  DetachedEntries candidates;
  DetachedEntries delivered;
  /// Where acc was read at indices: 0 if any of it is not finite, asked for or not.
  const std::uint64_t* finite = nullptr;
  const SelectionReport* report = nullptr;
  EditCounts* counts = nullptr;  ///< nothing is returned
};

/// Of a call that leaves its algorithm to `auto`, which chooses while the operation runs: ranks
/// select, or they sum all of acc, for which the device is then asked. No sums: they select.
struct AutoCapacity {
  DetachedCapacity lists;
  AccCapacity acc;
};

/// What is to be applied is what acc.counts says, as of `dense`, if that has happened; else what
/// lists.counts says.
struct AutoOnDevice {
  Detached lists;
  AccOnDevice acc;
};

}  // namespace gtopk
