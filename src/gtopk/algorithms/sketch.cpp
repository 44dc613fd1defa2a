// Sparse, algorithms room: `sketch`, SketchedSGD (Ivkin et al., arXiv 1903.04488) without its
// server. Count-sketches of acc are summed over the ranks, every rank finds the same heaviest
// elements in the sum, and a second round sums acc at these. No indices travel.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
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

/// The sketch of acc; all NaN if any acc is not finite.
template <class T>
void accumulate_sketch(const SparseCall& call, const CountSketch& sketch,
                       std::span<Accumulation<T>> cells) {
  using Value = Accumulation<T>;
  std::ranges::fill(cells, Value{0});
  bool spoiled = false;
  for_each_stretch_of_acc<T, CountSketch::kStretch>(
      call, [&](std::size_t begin, const Value* acc, std::size_t length, bool finite) {
        spoiled |= !finite;
        sketch.add(begin, std::span<const Value>(acc, length), cells.data());
      });
  if (spoiled) {
    std::ranges::fill(cells, std::numeric_limits<Value>::quiet_NaN());
  }
}

template <class T, class Index>
Task<void> sketch_as(GroupView& group, SparseCall call) {
  using Value = Accumulation<T>;
  const DataType type = accumulation_type(call.dtype);
  const auto d = static_cast<std::size_t>(call.d);
  const auto k = static_cast<std::size_t>(call.options.k);
  const std::size_t most = kHeavyPerEntry * k;
  const CountSketch sketch(call.options.seed.value_or(group.sequence()), kColumnsPerEntry * k);
  const std::span<Value> cells(
      reinterpret_cast<Value*>(group.buffer(sketch.cells() * sizeof(Value)).data()),
      sketch.cells());
  group.enter("compress");
  const std::uint64_t touched = call.d * CountSketch::kRows;
  Computation sketching =
      group.compute(touched, [&] { accumulate_sketch<T>(call, sketch, cells); });
  co_await sketching;

  group.enter("exchange");
  Task<void> summing_cells =
      collectives::reduce_over_ranks(group, cells.data(), cells.size(), type, ReduceOp::kSum);
  co_await summing_cells;

  // Always `most` values travel, so ranks cannot disagree on how many.
  const EntriesOut<Value, Index> heaviest = entries_room<Value, Index>(group, most);
  std::size_t found = 0;
  group.enter("compress");
  Computation unsketching = group.compute(touched, [&] {
    if (!all_finite(std::span<const Value>(cells))) {
      std::fill_n(heaviest.values, most, std::numeric_limits<Value>::quiet_NaN());
      return;
    }
    found = unsketch(sketch, cells.data(), d, most, heaviest, select_scratch_of_this_thread());
    gather<T>(call, heaviest.indices, found, heaviest.values);
    std::fill(heaviest.values + found, heaviest.values + most, Value{0});
  });
  co_await unsketching;

  group.enter("exchange");
  Task<void> summing_values =
      collectives::reduce_over_ranks(group, heaviest.values, most, type, ReduceOp::kSum,
                                     collectives::reduction_steps(group.size()));
  co_await summing_values;

  const EntriesOut<Value, Index> room = entries_room<Value, Index>(group, k);
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

}  // namespace

const AlgorithmRow kSketch{
    .name = "sketch",
    .description = "the heaviest elements of the sum of all acc, found in summed count-sketches",
    .draws = true,
    .whole = sketch};

}  // namespace gtopk::sparse
