#include "gtopk/algorithms/sparse_all_reduce.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "gtopk/algorithms/dense.hpp"
#include "gtopk/algorithms/exchange.hpp"
#include "gtopk/algorithms/gtopk.hpp"
#include "gtopk/algorithms/gtopk_tree.hpp"
#include "gtopk/error.hpp"
#include "gtopk/residual/commit.hpp"
#include "gtopk/value/accumulation.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Signature;
using engine::Computation;
using engine::GroupView;
using engine::Task;

/// Smaller sweeps are done where they are: handing them to another thread would take longer.
constexpr std::uint64_t kInlineElements = 1U << 15U;

/// Adds the time since its last call to a counter.
class PhaseClock {
 public:
  explicit PhaseClock(GroupView& group) : group_(group), since_(group.now()) {}
  void charge(std::atomic<std::uint64_t>& nanoseconds) {
    const transport::TimePoint now = group_.now();
    nanoseconds.fetch_add(static_cast<std::uint64_t>((now - since_).count()),
                          std::memory_order_relaxed);
    since_ = now;
  }

 private:
  GroupView& group_;
  transport::TimePoint since_;
};

/// From this rank's selection to the result. `turn`: for long lists, this exchange's place in line.
template <class Value, class Index>
Task<ListMessage<Value, Index>> walk(Algorithm algorithm, Exchange<Value, Index>& exchange,
                                     ListMessage<Value, Index> own,
                                     std::optional<engine::Turn>& turn) {
  if (turn) {
    engine::Turn& mine = *turn;
    co_await mine;
  }
  if (algorithm == Algorithm::kGtopkTree) {
    Task<ListMessage<Value, Index>> tree = gtopk_tree(exchange, own);
    own = co_await tree;
  } else {
    Task<ListMessage<Value, Index>> doubling = gtopk(exchange, own);
    own = co_await doubling;
  }
  turn.reset();
  co_return own;
}

template <class T, class Index>
Task<void> run(GroupView& group, SparseCall call, Workspace& workspace) {
  using Value = Accumulation<T>;
  const Signature signature = signature_of(call);
  const engine::CallText text(group, [&signature] { return describe(signature); });
  auto* const tensor = static_cast<T*>(call.tensor);
  auto* const residual = static_cast<Value*>(call.residual);
  const auto d = static_cast<std::size_t>(call.d);
  Exchange<Value, Index> exchange(group, signature, call.options.algorithm != Algorithm::kTopk,
                                  workspace.merge);
  std::optional<engine::Turn> turn;
  if (exchange.long_lists()) turn.emplace(group);
  PhaseClock phase(group);
  const bool here = d <= kInlineElements;
  const auto sweep = [&](auto work) -> Task<void> {
    if (here) {
      work();
    } else {
      Computation beside = group.compute([&work] { work(); });
      co_await beside;
    }
  };

  ListMessage<Value, Index> own = exchange.make(signature.k);
  Task<void> selecting = sweep([&] {
    const Selection selected =
        select_exact<T, Value, Index>(tensor, residual, d, signature.k, own.room(),
                                      here ? workspace.select : workspace.select_beside);
    exchange.seal(own, selected.count, selected.finite);
  });
  co_await selecting;
  phase.charge(group.counters().compress_nanoseconds);

  Task<ListMessage<Value, Index>> walking = walk(call.options.algorithm, exchange, own, turn);
  const ListMessage<Value, Index> result = co_await walking;
  phase.charge(group.counters().exchange_nanoseconds);

  const auto divisor = static_cast<Value>(call.options.op == ReduceOp::kAvg ? group.size() : 1);
  Task<void> committing = sweep([&] {
    if (!result.finite() || !representable<T, Value, Index>(result.entries(), divisor)) {
      fill_nan(tensor, d);
      return;
    }
    commit<T, Value, Index>(tensor, residual, d, own.entries(), result.entries(),
                            exchange.dropped().data(), exchange.dropped().size(),
                            call.options.put_back, divisor);
  });
  co_await committing;
  phase.charge(group.counters().commit_nanoseconds);
}

template <class T>
Task<void> run_for(GroupView& group, SparseCall call, Workspace& workspace) {
  if (call.options.algorithm == Algorithm::kDense) return dense<T>(group, call);
  if (call.d > std::numeric_limits<std::uint32_t>::max()) {
    return run<T, std::uint64_t>(group, call, workspace);
  }
  return run<T, std::uint32_t>(group, call, workspace);
}

}  // namespace

Signature signature_of(const SparseCall& call) {
  const SparseOptions& options = call.options;
  collectives::check_known(call.dtype, "data type");
  collectives::check_known(options.op, "reduction");
  collectives::check_known(options.algorithm, "algorithm");
  collectives::check_known(options.selector, "selector");
  collectives::check_known(options.put_back, "put_back");
  if (!is_floating(call.dtype)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce takes float32, float64, bfloat16 or float16, not {}",
                            to_string(call.dtype)));
  }
  if (options.op != ReduceOp::kSum && options.op != ReduceOp::kAvg) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("sparse_all_reduce takes ReduceOp SUM or AVG, not {}", to_string(options.op)));
  }
  const bool selects = options.algorithm != Algorithm::kDense;
  if (selects && options.k == 0 && call.d != 0) {
    throw Error(ErrorKind::kInvalidArgument, "sparse_all_reduce needs k >= 1, seen 0");
  }
  Signature signature;
  signature.collective = collectives::Collective::kSparseAllReduce;
  signature.dtype = call.dtype;
  signature.op = options.op;
  signature.algorithm = options.algorithm;
  signature.put_back = options.put_back;
  signature.selector = options.selector;
  signature.d = call.d;
  signature.k = selects ? std::min(options.k, call.d) : call.d;
  return signature;
}

Task<void> sparse_all_reduce(GroupView& group, SparseCall call, Workspace& workspace) {
  switch (call.dtype) {
    case DataType::kFloat32:
      return run_for<float>(group, call, workspace);
    case DataType::kFloat64:
      return run_for<double>(group, call, workspace);
    case DataType::kBfloat16:
      return run_for<Bfloat16>(group, call, workspace);
    case DataType::kFloat16:
      return run_for<Float16>(group, call, workspace);
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kBool:
      break;
  }
  static_cast<void>(signature_of(call));  // throws
  return {};
}

namespace {

Signature signature_of(const PreselectedCall& call) {
  SparseCall selected;
  selected.d = call.d;
  selected.options = call.options;
  return signature_of(selected);
}

}  // namespace

void check_preselected(const PreselectedCall& call, std::uint32_t ranks) {
  const Signature signature = signature_of(call);
  const std::string_view algorithm = to_string(call.options.algorithm);
  if (call.options.algorithm == Algorithm::kDense) {
    throw Error(ErrorKind::kInvalidArgument,
                "exchange takes gtopk, gtopk-tree or topk: dense selects nothing");
  }
  if (call.d > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("exchange takes indices of 32 bits, d = {} needs more", call.d));
  }
  if (call.indices.size() > signature.k || call.values.size() != call.indices.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("exchange({}) of k = {}: {} indices and {} values given", algorithm,
                            signature.k, call.indices.size(), call.values.size()));
  }
  const bool all = call.options.algorithm == Algorithm::kTopk;
  const std::uint64_t lists = all ? ranks : 1;
  const std::uint64_t largest =
      signature.k > call.d / lists ? call.d : signature.k * lists;  // without overflow
  if (call.result_indices.size() < largest || call.result_values.size() < largest) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange({}) of k = {} among {} ranks has up to {} entries; results have room "
                    "for {} indices and {} values",
                    algorithm, signature.k, ranks, largest, call.result_indices.size(),
                    call.result_values.size()));
  }
}

Task<void> exchange_preselected(GroupView& group, PreselectedCall call, Workspace& workspace) {
  using List = ListMessage<float, std::uint32_t>;
  const Signature signature = signature_of(call);
  const engine::CallText text(group, [&signature] { return describe(signature); });
  Exchange<float, std::uint32_t> exchange(
      group, signature, call.options.algorithm != Algorithm::kTopk, workspace.merge);
  std::optional<engine::Turn> turn;
  if (exchange.long_lists()) turn.emplace(group);
  PhaseClock phase(group);
  List own = exchange.make(signature.k);
  const std::size_t count = call.indices.size();
  if (count != 0) {
    std::memcpy(own.room().indices, call.indices.data(), count * sizeof(std::uint32_t));
    std::memcpy(own.room().values, call.values.data(), count * sizeof(float));
  }
  exchange.seal(own, count, true);
  Task<List> walking = walk(call.options.algorithm, exchange, own, turn);
  const List result = co_await walking;
  const Entries<float, std::uint32_t> entries = result.entries();
  if (entries.size != 0) {
    std::memcpy(call.result_indices.data(), entries.indices, entries.size * sizeof(std::uint32_t));
    std::memcpy(call.result_values.data(), entries.values, entries.size * sizeof(float));
  }
  *call.result_count = entries.size;
  phase.charge(group.counters().exchange_nanoseconds);
}

}  // namespace gtopk::sparse
