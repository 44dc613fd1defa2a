// Sparse, algorithms: `sketch`, SketchedSGD (Ivkin et al., arXiv 1903.04488) without its
// server. Count-sketches of acc are summed over the ranks, every rank finds the same heaviest
// elements in the sum, and a second round sums acc at these elements. No indices travel.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "src/collectives/all_reduce.hpp"
#include "src/engine/external_work.hpp"
#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/value/sketch_hashes.hpp"
#include "src/numbers/element_types.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::ExternalWork;
using engine::GroupView;
using engine::Task;

/// The ratio c / k. CommEfficient, the authors' later code, starts with 500,000 columns for k =
/// 50,000.
constexpr std::uint64_t kColumnsPerEntry = 10;
/// The paper's p2: the exact values of p2 k elements are summed. It was chosen by measurement.
constexpr std::uint64_t kHeavyPerEntry = 8;

/// Whether both rounds together send less than all of acc.
bool pays(std::uint64_t d, std::uint64_t k) {
  return (CountSketch::kRows * kColumnsPerEntry + kHeavyPerEntry) * k < d;
}

template <class Value>
bool all_finite(std::span<const Value> values) {
  return std::ranges::all_of(
      values, [](Value value) { return is_finite_key<Value>(magnitude_key(value)); });
}

/// The key of the largest |acc|; it is not finite if any acc is not.
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

/// Computes the sketch of acc; all cells are NaN if any acc is not finite. `numbers` has as many
/// cells, for the sums.
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

/// The two halves of the algorithm that read acc or visit all elements. They run on the CPU, or on
/// the device that has acc.
class Sketcher {
 public:
  /// `most` is the number of heaviest elements to find.
  Sketcher(GroupView& group, const SparseCall& call, std::size_t most)
      : group_(group),
        call_(call),
        sketch_(call.options.seed.value_or(group.sequence()), kColumnsPerEntry * call.options.k),
        cells_(sums_buffer(group, call, sketch_.cells())),
        heaviest_(call.device ? list_at(call.device->candidates, most)
                              : entries_buffer(group, call, most)) {
    heaviest_.size = most;
  }

  /// This rank's cells, then their sums over the ranks.
  [[nodiscard]] void* cells() const { return cells_; }
  [[nodiscard]] std::size_t cell_count() const { return sketch_.cells(); }
  /// The heaviest elements in index order, with acc as values.
  [[nodiscard]] const List& heaviest() const { return heaviest_; }

  Task<void> sketch() {
    if (call_.device) {
      co_return;  // the device has already written the cells
    }
    const std::span<std::byte> memory = group_.buffer(cell_count() * sizeof(std::uint64_t));
    const std::span numbers(reinterpret_cast<std::uint64_t*>(memory.data()), cell_count());
    Computation sketching = group_.compute(touched(), [&] {
      visit_floating(call_.dtype, [&]<class T>() {
        accumulate_sketch<T>(call_, sketch_, numbers, cells_as<Accumulation<T>>());
      });
    });
    co_await sketching;
  }

  /// Finds the heaviest elements from the summed cells. The number of values is always the same, so
  /// ranks cannot disagree on it: they are NaN if a cell is not finite, and zeros follow the
  /// elements that are found.
  Task<void> find() {
    bool finite = false;
    std::size_t found = 0;
    Computation finding = group_.compute(call_.device ? cell_count() : touched(), [&] {
      visit_entry(call_.entry_type(), [&]<class Value, class Index>() {
        finite = all_finite(std::span<const Value>(cells_as<Value>()));
        if (finite && !call_.device) {
          found = unsketch(sketch_, cells_as<Value>().data(), static_cast<std::size_t>(call_.d),
                           heaviest_.size, heaviest_.output<Value, Index>(),
                           select_scratch_of_this_thread());
        }
      });
      if (finite && !call_.device) {
        gather(call_, call_.entry_type(), first(found));
      }
    });
    co_await finding;
    if (finite && call_.device) {
      const AccOnDevice& there = *call_.device;
      ExternalWork finding_there(
          group_, [&](ExternalWork::Done done) { there.device->find(std::move(done)); });
      co_await finding_there;
      found = static_cast<std::size_t>(std::min<std::uint64_t>(there.report->kept, heaviest_.size));
      spoil_unless_finite(there, call_.entry_type(), first(found));
    }
    visit_floating(accumulation_type(call_.dtype), [&]<class Value>() {
      auto* const values = reinterpret_cast<Value*>(heaviest_.values);
      std::fill(values + found, values + heaviest_.size,
                finite ? Value{0} : std::numeric_limits<Value>::quiet_NaN());
    });
  }

 private:
  [[nodiscard]] std::uint64_t touched() const { return call_.d * CountSketch::kRows; }

  template <class Value>
  [[nodiscard]] std::span<Value> cells_as() const {
    return {static_cast<Value*>(cells_), cell_count()};
  }
  [[nodiscard]] List first(std::size_t count) const {
    List found = heaviest_;
    found.size = count;
    return found;
  }

  GroupView& group_;
  const SparseCall& call_;
  const CountSketch sketch_;
  void* const cells_;
  List heaviest_;
};

/// Selects the first k of the sums at the heaviest elements.
List delivered_of(EntryType type, const List& heaviest, const List& output) {
  const List result = largest_of(type, heaviest.values, heaviest.size, output);
  visit_entry(type, [&]<class Value, class Index>() {
    // Selected positions among the heaviest elements ascend with their indices.
    const auto from = heaviest.entries<Value, Index>();
    auto* const indices = result.output<Value, Index>().indices;
    std::transform(indices, indices + result.size, indices,
                   [&](Index place) { return from.indices[place]; });
  });
  return result;
}

Task<void> sketch_and_sum(GroupView& group, SparseCall call) {
  const DataType type = accumulation_type(call.dtype);
  const auto k = static_cast<std::size_t>(call.options.k);
  Sketcher sketcher(group, call, kHeavyPerEntry * k);
  group.enter("compress");
  co_await sketcher.sketch();

  group.enter("exchange");
  co_await collectives::reduce_over_ranks(group, sketcher.cells(), sketcher.cell_count(), type,
                                          ReduceOp::kSum);

  group.enter("compress");
  co_await sketcher.find();

  group.enter("exchange");
  const List& heaviest = sketcher.heaviest();
  co_await collectives::reduce_over_ranks(group, heaviest.values, heaviest.size, type,
                                          ReduceOp::kSum,
                                          collectives::reduction_steps(group.size()));

  const List output = result_buffer(group, call, k);
  const auto find = [&] { return delivered_of(call.entry_type(), heaviest, output); };
  Task<void> delivering = deliver_alike(group, call, std::ref(find));
  co_await delivering;
}

Task<void> sketch(GroupView& group, SparseCall call) {
  return pays(call.d, call.options.k) ? sketch_and_sum(group, std::move(call))
                                      : kTrueTopk.whole(group, std::move(call));
}

AccCapacity sketch_on_device(std::uint64_t d, std::uint64_t k) {
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
    .adds_elements = true,
    .whole = sketch,
    .on_device = sketch_on_device};

}  // namespace gtopk::sparse
