// Public surface: a sparse all-reduce in which no rank selects (`dense`, `true-topk`, `random-k`,
// `sketch`), of a tensor and a residual that stay on a device. What ranks sum is in pinned memory;
// the device writes it there when it is asked to, and applies the result. Ranks of one group may
// mix such calls and ordinary ones. The functions are in collectives.hpp.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "gtopk/detached.hpp"

namespace gtopk {

/// acc at indices that all ranks know. All of it is in pinned memory.
struct DeviceGather {
  const void* indices = nullptr;  ///< below d
  std::uint64_t count = 0;
  void* values = nullptr;
  /// 1 beforehand. Set to 0 if any acc is not finite, asked for or not.
  std::uint64_t* finite = nullptr;
};

/// The count-sketch of acc, with the hashes that a seed gives for so many columns.
struct DeviceSketch {
  std::uint64_t seed = 0;
  std::uint64_t columns = 0;
  /// In pinned memory: all cells, row after row; NaN if any acc is not finite.
  void* cells = nullptr;
};

/// The first `most` of all elements in the selection order of their estimates from finite cells.
struct DeviceFind {
  std::uint64_t seed = 0;
  std::uint64_t columns = 0;
  /// In pinned memory.
  const void* cells = nullptr;
  std::uint64_t most = 0;
  /// In pinned memory: in the order of the index, with the estimates as values.
  DetachedEntries heaviest;
  SelectionReport* report = nullptr;
};

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

  /// All of acc into pinned memory.
  virtual void accumulate(void* to, Done done) = 0;
  virtual void gather(const DeviceGather& wanted, Done done) = 0;
  virtual void sketch(const DeviceSketch& wanted, Done done) = 0;
  virtual void find(const DeviceFind& wanted, Done done) = 0;
};

/// What a call needs.
struct AccRoom {
  /// All of acc is handed in when the operation starts; else the device is asked while it runs.
  bool whole = false;
  /// Values that ranks sum: d if `whole`, the cells of a sketch.
  std::uint64_t sums = 0;
  /// The most entries of the result. 0: the result is all of the sums.
  std::uint64_t delivered = 0;
  /// Of a sketch, and the most elements that are found in it; 0: there is none.
  std::uint64_t columns = 0;
  std::uint64_t candidates = 0;
  std::uint32_t index_bytes = 4;
};

/// In pinned memory, valid until the operation is destroyed. Written before the operation ends:
/// what the caller then applies to a residual that holds acc and a tensor of zeros. The residual
/// and the momentum become 0 at each delivered index, and the tensor the value there, after
/// division by detached_divisor() and rounding. Of `dense` that is all of `sums`, everywhere, and
/// the momentum stays.
struct AccOnDevice {
  AccDevice* device = nullptr;  ///< null if room.whole: acc is in `sums` when the operation starts
  void* sums = nullptr;
  DetachedEntries candidates;
  DetachedEntries delivered;
  std::uint64_t* finite = nullptr;
  SelectionReport* report = nullptr;
  EditCounts* counts = nullptr;  ///< nothing is returned
};

/// Of a call that leaves its algorithm to `auto`, which chooses while the operation runs: ranks
/// select, or they sum all of acc, for which the device is then asked.
struct AutoRoom {
  DetachedRoom lists;
  AccRoom acc;
};

/// What is to be applied is what acc.counts says, as of `dense`, if that has happened; else what
/// lists.counts says.
struct AutoOnDevice {
  Detached lists;
  AccOnDevice acc;
};

}  // namespace gtopk
