// Sparse, algorithms room: `sketch`, SketchedSGD (Ivkin et al., arXiv 1903.04488) without its
// server. Count-sketches of acc are summed over the ranks, every rank finds the same heaviest
// elements in the sum, and a second round sums acc at these. No indices travel.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "src/collectives/all_reduce.hpp"
#include "src/engine/errand.hpp"
#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/gtopk/value/sketch_hashes.hpp"
#include "src/numbers/element_types.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::Errand;
using engine::GroupView;
using engine::Task;

/// c / k, as CommEfficient, the authors' later code, starts with: 500,000 columns for k = 50,000.
constexpr std::uint64_t kColumnsPerEntry = 10;
/// p2: the exact values of p2 k elements are summed; chosen by measurement.
constexpr std::uint64_t kHeavyPerEntry = 8;

/// Whether both rounds together send less than all of acc would.
bool pays(std::uint64_t d, std::uint64_t k) {
  return (CountSketch::kRows * kColumnsPerEntry + kHeavyPerEntry) * k < d;
}

template <class Value>
bool all_finite(std::span<const Value> values) {
  return std::ranges::all_of(
      values, [](Value value) { return is_finite_key<Value>(magnitude_key(value)); });
}

/// The key of the largest |acc|; not finite if any acc is not.
template <class T>
Key<Accumulation<T>> largest_key(const SparseCall& call) {
  using Value = Accumulation<T>;
  Key<Value> largest = 0;
  for_each_stretch_of_acc<T, CountSketch::kStretch>(
      call, [&](std::size_t /*begin*/, const Value* acc, std::size_t length, bool /*finite*/) {
        for (std::size_t i = 0; i < length; ++i) {
          largest = std::max(largest, magnitude_key(acc[i]));
        }
      });
  return largest;
}

/// The sketch of acc; all NaN if any acc is not finite. `numbers`: as many, for the sums.
template <class T>
void accumulate_sketch(const SparseCall& call, const CountSketch& sketch,
                       std::span<std::uint64_t> numbers, std::span<Accumulation<T>> cells) {
  using Value = Accumulation<T>;
  const Key<Value> largest = largest_key<T>(call);
  if (!is_finite_key<Value>(largest)) {
    std::ranges::fill(cells, std::numeric_limits<Value>::quiet_NaN());
    return;
  }
  const KeepDenormals guard;
  const auto point = FixedPoint::of<Value>(largest, call.d);
  std::ranges::fill(numbers, 0U);
  for (std::size_t row = 0; row < CountSketch::kRows; ++row) {
    std::uint64_t* const of_row = numbers.data() + row * sketch.columns();
    for_each_stretch_of_acc<T, CountSketch::kStretch>(
        call, [&](std::size_t begin, const Value* acc, std::size_t length, bool /*finite*/) {
          sketch.add(row, begin, std::span<const Value>(acc, length), point, of_row);
        });
  }
  std::ranges::transform(numbers, cells.begin(), [point](std::uint64_t number) {
    return point.template value<Value>(number);
  });
}

/// The two halves of the algorithm that read acc or go over all elements; on the CPU, or on the
/// device that has acc.
template <class T, class Index>
class Sketcher {
 public:
  using Value = Accumulation<T>;

  Sketcher(GroupView& group, const SparseCall& call, std::size_t most)
      : group_(group),
        call_(call),
        seed_(call.options.seed.value_or(group.sequence())),
        columns_(kColumnsPerEntry * call.options.k),
        most_(most),
        sketch_(seed_, columns_),
        cells_(sums_room<Value>(group, call, sketch_.cells()), sketch_.cells()),
        heaviest_(candidates_room(group, call, most)) {}

  /// Of this rank, then summed over the ranks.
  [[nodiscard]] std::span<Value> cells() const { return cells_; }
  /// The heaviest elements, in the order of the index, and acc there.
  [[nodiscard]] const EntriesOut<Value, Index>& heaviest() const { return heaviest_; }

  Task<void> sketch() {
    if (call_.device) {
      Errand sketching(group_, [&](Errand::Done done) {
        call_.device->device->sketch({seed_, columns_, cells_.data()}, std::move(done));
      });
      co_await sketching;
      co_return;
    }
    const std::span<std::byte> memory = group_.buffer(cells_.size() * sizeof(std::uint64_t));
    const std::span numbers(reinterpret_cast<std::uint64_t*>(memory.data()), cells_.size());
    Computation sketching =
        group_.compute(touched(), [&] { accumulate_sketch<T>(call_, sketch_, numbers, cells_); });
    co_await sketching;
  }

  /// From the summed cells. Always `most` values, so ranks cannot disagree on how many: NaN if a
  /// cell is not finite, zeros behind what is found.
  Task<void> find() {
    bool finite = false;
    std::size_t found = 0;
    Computation finding = group_.compute(call_.device ? cells_.size() : touched(), [&] {
      finite = all_finite(std::span<const Value>(cells_));
      if (!finite) {
        std::fill_n(heaviest_.values, most_, std::numeric_limits<Value>::quiet_NaN());
      } else if (!call_.device) {
        found = unsketch(sketch_, cells_.data(), static_cast<std::size_t>(call_.d), most_,
                         heaviest_, select_scratch_of_this_thread());
        gather<T>(call_, heaviest_.indices, found, heaviest_.values);
      }
    });
    co_await finding;
    if (!finite) {
      co_return;
    }
    if (call_.device) {
      const AccOnDevice& there = *call_.device;
      Errand finding_there(group_, [&](Errand::Done done) {
        there.device->find({seed_, columns_, cells_.data(), most_, there.candidates, there.report},
                           std::move(done));
      });
      co_await finding_there;
      found = static_cast<std::size_t>(std::min<std::uint64_t>(there.report->kept, most_));
      Task<void> gathering = gather_there<Value, Index>(group_, there, heaviest_, found);
      co_await gathering;
    }
    std::fill(heaviest_.values + found, heaviest_.values + most_, Value{0});
  }

 private:
  [[nodiscard]] std::uint64_t touched() const { return call_.d * CountSketch::kRows; }

  [[nodiscard]] static EntriesOut<Value, Index> candidates_room(GroupView& group,
                                                                const SparseCall& call,
                                                                std::size_t most) {
    if (!call.device) {
      return entries_room<Value, Index>(group, most);
    }
    const DetachedEntries& there = call.device->candidates;
    return {static_cast<Index*>(there.indices), static_cast<Value*>(there.values)};
  }

  GroupView& group_;
  const SparseCall& call_;
  const std::uint64_t seed_;
  const std::uint64_t columns_;
  const std::size_t most_;
  const CountSketch sketch_;
  const std::span<Value> cells_;
  const EntriesOut<Value, Index> heaviest_;
};

template <class T, class Index>
Task<void> sketch_as(GroupView& group, SparseCall call) {
  using Value = Accumulation<T>;
  const DataType type = accumulation_type(call.dtype);
  const auto k = static_cast<std::size_t>(call.options.k);
  const std::size_t most = kHeavyPerEntry * k;
  Sketcher<T, Index> sketcher(group, call, most);
  group.enter("compress");
  Task<void> sketching = sketcher.sketch();
  co_await sketching;

  group.enter("exchange");
  const std::span<Value> cells = sketcher.cells();
  Task<void> summing_cells =
      collectives::reduce_over_ranks(group, cells.data(), cells.size(), type, ReduceOp::kSum);
  co_await summing_cells;

  group.enter("compress");
  Task<void> finding = sketcher.find();
  co_await finding;

  group.enter("exchange");
  const EntriesOut<Value, Index> heaviest = sketcher.heaviest();
  Task<void> summing_values =
      collectives::reduce_over_ranks(group, heaviest.values, most, type, ReduceOp::kSum,
                                     collectives::reduction_steps(group.size()));
  co_await summing_values;

  const EntriesOut<Value, Index> room = result_room<Value, Index>(group, call, k);
  Task<void> delivering = deliver_alike<T, Index>(group, call, [&] {
    const Selection selection =
        select_exact<Value, Value, Index>(Segments<const Value>(heaviest.values), nullptr, most, k,
                                          room, select_scratch_of_this_thread());
    if (selection.finite) {
      // Positions among the heaviest; these ascend with their indices.
      std::transform(room.indices, room.indices + selection.count, room.indices,
                     [&](Index place) { return heaviest.indices[place]; });
    }
    return Found<T, Index>{{room.indices, room.values, selection.count}, selection.finite};
  });
  co_await delivering;
}

Task<void> sketch(GroupView& group, SparseCall call) {
  if (!pays(call.d, call.options.k)) {
    return kTrueTopk.whole(group, call);
  }
  Task<void> body;
  visit_floating(call.dtype, [&]<class T>() {
    body = call.d > std::numeric_limits<std::uint32_t>::max()
               ? sketch_as<T, std::uint64_t>(group, call)
               : sketch_as<T, std::uint32_t>(group, call);
  });
  return body;
}

AccRoom sketch_on_device(std::uint64_t d, std::uint64_t k) {
  if (!pays(d, k)) {
    return kTrueTopk.on_device(d, k);
  }
  const std::uint64_t columns = kColumnsPerEntry * k;
  return {.sums = CountSketch::kRows * columns,
          .delivered = k,
          .columns = columns,
          .candidates = kHeavyPerEntry * k};
}

}  // namespace

const AlgorithmRow kSketch{
    .name = "sketch",
    .description = "the heaviest elements of the sum of all acc, found in summed count-sketches",
    .draws = true,
    .whole = sketch,
    .on_device = sketch_on_device};

}  // namespace gtopk::sparse
