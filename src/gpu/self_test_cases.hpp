// GPU: the calls of the self-test for one element type, and the results of the CPU's own functions
// for the same arguments. This header does not manage memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "gtopk/detached.hpp"
#include "gtopk/selection_rule.hpp"
#include "gtopk/types.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/self_test_run.hpp"
#include "src/gpu/self_test_vectors.hpp"
#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/residual/edits.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/gtopk/value/sketch_hashes.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::gpu {

/// A selection, by a row of the registry.
struct SelfTestSelection {
  std::string_view selector;
  std::uint64_t d = 0;
  double density = 0.01;
  bool residual = true;
  bool infinite = false;    ///< whether an element is infinite
  std::uint64_t block = 0;  ///< elements per block, for `block`
  /// For `threshold`: the last step's threshold, as a multiple of the exact one. 0 if there was
  /// none.
  double last = 0;
};

/// Makes the calls. T is the element type.
template <class T>
class SelfTestCases : private SelfTestVectors<T> {
  using Base = SelfTestVectors<T>;
  using Base::begin_call;
  using Base::drawn_list;
  using Base::drawn_values;
  using Base::drawn_vector;
  using Base::dtype_;
  using Base::expect_vector;
  using Base::extent_;
  using Base::pinned_one;
  using Base::place;
  using Base::run_;
  using typename Base::Index;
  using typename Base::OwnedList;
  using typename Base::Placed;
  using typename Base::Value;
  using typename Base::Vector;

 public:
  using Base::Base;

  /// Makes all calls. Throws what SelfTestRun::run() throws.
  void make_all_calls() {
    select_all();
    for (const std::uint64_t d : {std::uint64_t{1}, extent_.few}) {
      accumulate(d, 1);
      gather(d, false);
      commit(d, {.put_back = PutBack::kOwn});
      commit_whole(d, true, 1);
      sketch(d, false);
      find(d);
    }
    const std::uint64_t d = extent_.few;
    accumulate(d, 0);
    gather(d, true);
    commit(d, {.put_back = PutBack::kMerged});
    commit(d, {.put_back = PutBack::kMerged, .residual = false});
    commit(d, {.happened = 0});
    commit(d, {.happened = 0, .unless = 1});
    commit_whole(d, false, 1);
    commit_whole(d, true, 0);
    sketch(d, true);
    if (extent_.many != 0) {
      commit(extent_.many, {});
      find(extent_.many);
    }
  }

 private:
  struct CommitOptions {
    PutBack put_back = PutBack::kOwn;
    std::uint64_t happened = 1;
    std::uint64_t unless = 0;
    bool residual = true;
  };

  void select_all() {
    const std::uint64_t d = extent_.few;
    constexpr std::uint64_t kSeveral = 12'291;
    for (const SelfTestSelection& one : std::initializer_list<SelfTestSelection>{
             {"exact", 1},
             {"exact", d},
             {"exact", d, 1},
             {"exact", d, 0.3, false},  // the cut is among equal magnitudes
             {"exact", d, 0.01, true, true},
             {"gaussian", 1},
             {"gaussian", d},
             {"gaussian", d, 0.3, false},
             {"gaussian", d, 0.01, true, true},
             {"sampled", d, 0.05},
             {"sampled", kSeveral, 0.2, false},
             {"sampled", d, 0.05, true, true},
             {"threshold", 1},
             {"threshold", d, 0.02, true, false, 0, 1.03},
             {"threshold", d, 0.02, true, false, 0, 4},
             {"threshold", d, 0.02, true, true, 0, 1.03},
             {"block", d, 0.05, true, false, 64},
             {"block", d, 0.3, false, false, 1000},
             {"block", kSeveral, 0.02, true, false, 5000},
             {"block", d, 0.05, true, true, 64},
         }) {
      select(one);
    }
    if (extent_.many == 0) {
      return;
    }
    for (const SelfTestSelection& one : std::initializer_list<SelfTestSelection>{
             {"exact", extent_.many, 0.001},
             {"exact", extent_.many, 0.6},  // without candidates
             {"gaussian", extent_.many},
             {"sampled", extent_.many},
             {"threshold", extent_.many, 0.01, true, false, 0, 1.03},
             {"block", extent_.many, 0.01, true, false, 4096},
         }) {
      select(one);
    }
  }

  void select(const SelfTestSelection& one) {
    const Vector& from = drawn_vector(one.d, one.residual, one.infinite);
    SelectorState state;
    SparseOptions options;
    options.density = one.density;
    options.block = one.block;
    options.state = &state;  // only its presence matters
    const sparse::SelectorRow& row = sparse::selector_registry().find(one.selector);
    const std::uint64_t k = row.per_block ? selection_size(one.d, one.density, one.block)
                                          : selection_size(one.d, one.density);
    const SelectionRule rule = row.on_device(one.d, k, options).value();
    OwnedList list;
    list.indices.resize(row.most_of(one.d, k));
    list.values.resize(list.indices.size());
    const auto on_the_cpu = [&] {
      sparse::List out;
      out.indices = reinterpret_cast<std::byte*>(list.indices.data());
      out.values = reinterpret_cast<std::byte*>(list.values.data());
      out.capacity = list.indices.size();
      return row.select({.tensor = sparse::Segments<void>(const_cast<T*>(from.tensor.data())),
                         .residual = from.kept(),
                         .d = one.d,
                         .dtype = dtype_,
                         .k = k,
                         .entry = {accumulation_type(dtype_), sizeof(Index)},
                         .density = one.density,
                         .block = one.block,
                         .state = state},
                        out, scratch_);
    };
    if (one.last != 0) {
      state.numbers[0] = one.infinite ? one.last : on_the_cpu().next.numbers[0] * one.last;
    }
    const sparse::Selection expected = on_the_cpu();

    begin_call("select",
               fmt::format("{}, k {}{}", one.selector, k, one.infinite ? ", an infinity" : ""),
               one.d);
    const Placed placed = place(from);
    cuda::SelectCall call;
    call.acc = placed.acc;
    call.rule = rule;
    call.workspace = run_.scratch(run_.kernels().select_workspace_bytes(placed.acc, rule));
    auto* const indices = run_.template pinned<Index>(rule.most);
    auto* const values = run_.template pinned<Value>(rule.most);
    auto* const report = pinned_one(SelectionReport());
    auto* const next = pinned_one(SelectorState());
    call.kept = {indices, values, rule.most};
    call.report = report;
    call.state = pinned_one(state)->numbers.data();
    call.next = next->numbers.data();
    if (!run_.run(run_.kernels().select, call)) {
      return;
    }
    const std::uint64_t finite = expected.finite ? 1 : 0;
    const std::uint64_t count = expected.count;
    run_.expect("finite", &report->finite, std::span(&finite, 1));
    run_.expect("entries", &report->kept, std::span(&count, 1));
    run_.expect("index", indices, std::span<const Index>(list.indices).first(expected.count));
    run_.expect("value", values, std::span<const Value>(list.values).first(expected.count));
    if (rule.kind == SelectionRule::Kind::kThreshold && expected.finite) {
      run_.expect("next state", next->numbers.data(), std::span(expected.next.numbers));
    }
  }

  void commit(std::uint64_t d, const CommitOptions& options) {
    Vector expected = drawn_vector(d, options.residual);
    std::vector<Value> momentum = drawn_values(d, 3);
    const OwnedList own = drawn_list(d, 5);
    const OwnedList result = drawn_list(d, 7);
    const OwnedList dropped[] = {drawn_list(d, 11), drawn_list(d, 13)};
    const sparse::Entries<Value, Index> views[] = {dropped[0].view(), dropped[1].view()};
    const std::size_t returned = views[0].size + views[1].size;
    constexpr Value kDivisor = 3;

    begin_call("commit",
               options.unless != 0                 ? "not its turn"
               : options.happened == 0             ? "a step that did not happen"
               : options.put_back == PutBack::kOwn ? "put_back own"
                                                   : "put_back merged",
               d);
    const Placed placed = place(expected);
    const auto momenta = run_.mirrored(std::span<const Value>(momentum), 1);
    const sparse::Edits<Value, Index> edits{
        run_.template pinned<Index>(own.indices.size()),
        {run_.template pinned<Index>(returned), run_.template pinned<Value>(returned)},
        {run_.template pinned<Index>(result.indices.size()),
         run_.template pinned<Value>(result.indices.size())}};
    const sparse::StepLists<Value, Index> lists{
        .own = own.view(), .result = result.view(), .dropped = views, .put_back = options.put_back};
    EditCounts counts = sparse::make_edits(lists, returned, edits);
    counts.happened = options.happened;
    cuda::CommitCall call;
    call.acc = placed.acc;
    call.momentum = momenta.device;
    call.cleared = edits.cleared;
    call.returned = {edits.returned.indices, edits.returned.values, 0};
    call.delivered = {edits.delivered.indices, edits.delivered.values, 0};
    call.counts = pinned_one(counts);
    call.divisor = kDivisor;
    call.unless = pinned_one(options.unless);
    if (!run_.run(run_.kernels().commit, call)) {
      return;
    }
    if (options.unless == 0) {
      Value* const kept = expected.residual.empty() ? nullptr : expected.residual.data();
      if (options.happened == 0) {
        sparse::fill_nan(sparse::Segments<T>(expected.tensor.data()), d);
      } else {
        sparse::commit<T, Value, Index>(expected.tensor.data(), kept, d, lists, kDivisor);
        sparse::mask(momentum.data(), lists);
      }
    }
    expect_vector(placed, expected);
    run_.expect("momentum", momenta.host, std::span<const Value>(momentum));
  }

  [[nodiscard]] std::vector<Value> acc_of(const Vector& vector) const {
    std::vector<Value> acc(vector.tensor.size());
    static_cast<void>(
        sparse::accumulate<T, Value>(vector.tensor.data(), vector.kept(), acc.data(), acc.size()));
    return acc;
  }

  void accumulate(std::uint64_t d, std::uint64_t only_if) {
    const Vector& from = drawn_vector(d);
    std::vector<Value> expected(d, Value{5});
    begin_call("accumulate", only_if == 0 ? "not its turn" : "", d);
    const Placed placed = place(from);
    auto* const to = run_.pinned(std::span<const Value>(expected));
    if (run_.run(run_.kernels().accumulate,
                 cuda::AccumulateCall{placed.acc, to, pinned_one(only_if)})) {
      run_.expect("acc", to, std::span<const Value>(only_if == 0 ? expected : acc_of(from)));
    }
  }

  void gather(std::uint64_t d, bool infinite) {
    const Vector& from = drawn_vector(d, true, infinite);
    const OwnedList at = drawn_list(d, 5);
    begin_call("gather", infinite ? "an infinity" : "", d);
    const Placed placed = place(from);
    auto* const values = run_.template pinned<Value>(at.indices.size());
    auto* const finite = pinned_one(std::uint64_t{1});
    const cuda::GatherCall call{placed.acc, run_.pinned(std::span<const Index>(at.indices)),
                                at.indices.size(), values, finite};
    if (!run_.run(run_.kernels().gather, call)) {
      return;
    }
    const std::uint64_t is_finite = infinite ? 0 : 1;
    run_.expect("finite", finite, std::span(&is_finite, 1));
    if (!infinite) {
      const std::vector<Value> acc = acc_of(from);
      std::vector<Value> expected;
      std::ranges::transform(at.indices, std::back_inserter(expected),
                             [&](Index index) { return acc[index]; });
      run_.expect("value", values, std::span<const Value>(expected));
    }
  }

  void commit_whole(std::uint64_t d, bool happened, std::uint64_t only_if) {
    Vector expected = drawn_vector(d);
    const std::vector<Value> sums = drawn_values(d, 3);
    constexpr Value kDivisor = 7;
    begin_call("commit_whole",
               only_if == 0 ? "not its turn" : (happened ? "" : "a step that did not happen"), d);
    const Placed placed = place(expected);
    EditCounts counts;
    counts.happened = happened ? 1 : 0;
    const cuda::CommitWholeCall call{placed.acc, run_.pinned(std::span<const Value>(sums)),
                                     pinned_one(counts), kDivisor, pinned_one(only_if)};
    if (!run_.run(run_.kernels().commit_whole, call)) {
      return;
    }
    if (only_if != 0 && happened) {
      sparse::commit_whole<T, Value>(expected.tensor.data(), expected.residual.data(), sums.data(),
                                     d, kDivisor);
    } else if (only_if != 0) {
      sparse::fill_nan(sparse::Segments<T>(expected.tensor.data()), d);
    }
    expect_vector(placed, expected);
  }

  static constexpr std::uint64_t kColumns = 50;

  /// The cells that the CPU would sum; all are NaN if acc is not finite.
  [[nodiscard]] std::vector<Value> cells_of(const std::vector<Value>& acc) const {
    const sparse::CountSketch sketch(extent_.seed, kColumns);
    std::vector<Value> cells(sketch.cells(), std::numeric_limits<Value>::quiet_NaN());
    sparse::Key<Value> largest = 0;
    for (const Value value : acc) {
      largest = std::max(largest, sparse::magnitude_key(value));
    }
    if (!sparse::is_finite_key<Value>(largest)) {
      return cells;
    }
    const auto point = sparse::FixedPoint::of<Value>(largest, acc.size());
    std::vector<std::uint64_t> numbers(cells.size());
    for (std::size_t row = 0; row < sparse::CountSketch::kRows; ++row) {
      for (std::size_t begin = 0; begin < acc.size(); begin += sparse::CountSketch::kStretch) {
        const std::size_t length = std::min(sparse::CountSketch::kStretch, acc.size() - begin);
        sketch.add(row, begin, std::span<const Value>(&acc[begin], length), point,
                   numbers.data() + row * kColumns);
      }
    }
    std::ranges::transform(numbers, cells.begin(), [&](std::uint64_t number) {
      return point.template value<Value>(number);
    });
    return cells;
  }

  void sketch(std::uint64_t d, bool infinite) {
    const Vector& from = drawn_vector(d, true, infinite);
    const std::vector<Value> expected = cells_of(acc_of(from));
    begin_call("sketch", infinite ? "an infinity" : "", d);
    const Placed placed = place(from);
    auto* const cells = run_.template pinned<Value>(expected.size());
    cuda::SketchCall call;
    call.acc = placed.acc;
    call.seed = extent_.seed;
    call.columns = kColumns;
    call.workspace = sketch_scratch(d, 1);
    call.cells = cells;
    if (!run_.run(run_.kernels().sketch, call)) {
      return;
    }
    const auto is_nan = [](Value cell) { return std::isnan(cell); };
    if (!infinite || !std::ranges::all_of(std::span(cells, expected.size()), is_nan)) {
      run_.expect("cell", cells, std::span(expected));  // any NaN is accepted
    }
  }

  void find(std::uint64_t d) {
    const std::uint64_t most = selection_size(d, 0.01);
    const sparse::CountSketch sketch(extent_.seed, kColumns);
    const std::vector<Value> cells = drawn_values(sketch.cells(), 4);
    OwnedList expected;
    expected.indices.resize(most);
    expected.values.resize(most);
    const std::uint64_t found = sparse::unsketch<Value, Index>(
        sketch, cells.data(), d, most, {expected.indices.data(), expected.values.data()}, scratch_);

    begin_call("find", fmt::format("{} heaviest", most), d);
    auto* const indices = run_.template pinned<Index>(most);
    auto* const report = pinned_one(SelectionReport());
    cuda::FindCall call;
    call.values = accumulation_type(dtype_);
    call.d = d;
    call.seed = extent_.seed;
    call.columns = kColumns;
    call.cells = run_.pinned(std::span<const Value>(cells));
    call.most = most;
    call.workspace = sketch_scratch(d, most);
    call.heaviest = {indices, run_.template pinned<Value>(most), most};
    call.report = report;
    if (run_.run(run_.kernels().find, call)) {
      run_.expect("entries", &report->kept, std::span(&found, 1));
      run_.expect("index", indices, std::span<const Index>(expected.indices).first(found));
    }
  }

  [[nodiscard]] void* sketch_scratch(std::uint64_t d, std::uint64_t most) {
    return run_.scratch(
        run_.kernels().sketch_workspace_bytes(accumulation_type(dtype_), kColumns, d, most));
  }

  sparse::SelectScratch scratch_;
};

}  // namespace gtopk::gpu
