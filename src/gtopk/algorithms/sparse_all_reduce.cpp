#include "src/gtopk/algorithms/sparse_all_reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/memory.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/call_types.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/exchange_phase.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

Selection select(const SparseCall& call, const ResolvedCall& resolved, const List& own) {
  const SelectorState* const last = call.options.state;
  return resolved.selector->select({.tensor = call.tensor,
                                    .residual = call.residual,
                                    .d = call.d,
                                    .dtype = call.dtype,
                                    .k = resolved.lists.k,
                                    .entry = resolved.lists.type,
                                    .density = call.options.density,
                                    .block = call.options.block,
                                    .state = last == nullptr ? SelectorState{} : *last},
                                   own, select_scratch_of_this_thread());
}

template <class T, class Index>
void commit_as(const SparseCall& call, std::uint32_t ranks, const List& own, const List& result,
               std::span<const List> dropped) {
  using Value = Accumulation<T>;
  const Segments<T> tensor(call.tensor);
  std::array<Entries<Value, Index>, kMostDropped> left_out;
  std::ranges::transform(dropped, left_out.begin(),
                         [](const List& list) { return list.entries<Value, Index>(); });
  const StepLists<Value, Index> lists{.own = own.entries<Value, Index>(),
                                      .result = result.entries<Value, Index>(),
                                      .dropped = std::span(left_out).first(dropped.size()),
                                      .put_back = call.options.put_back};
  commit<T, Value, Index>(tensor, static_cast<Value*>(call.residual), call.d, lists,
                          divisor_of<Value>(call.options, ranks));
  if (call.options.momentum != nullptr) {
    mask(static_cast<Value*>(call.options.momentum), lists);
  }
}

/// Writes tensor and residual; if the step has not happened, only the tensor, with NaN.
void commit(const SparseCall& call, std::uint32_t ranks, const List& own, const List& result,
            std::span<const List> dropped, bool happened) {
  visit_types(call, [&]<class T, class Index>() {
    if (!happened) {
      fill_nan(Segments<T>(call.tensor), call.d);
      return;
    }
    commit_as<T, Index>(call, ranks, own, result, dropped);
  });
}

}  // namespace

Task<void> sparse_all_reduce(GroupView& group, SparseCall call, ResolvedCall resolved,
                             std::unique_ptr<engine::Turn> turn) {
  const GiveUpGate unless_it_arrives(call.gate.get());
  if (const BlockCoder* const coder = resolved.coder()) {
    Task<void> coded = resolved.algorithm->coded(group, call, *coder, std::move(turn));
    co_await coded;
    co_return;
  }
  if (!resolved.algorithm->selects()) {
    turn.reset();
    call.options.k = resolved.lists.k;  // whether given as k or as a density
    co_await resolved.algorithm->whole(group, call);
    co_return;
  }
  ExchangePhase exchange(group, resolved, std::move(turn));
  group.enter("compress");
  List own = exchange.lists().make(resolved.lists.leaf);
  Selection selected;
  engine::Computation selecting =
      group.compute(call.d, [&] { selected = select(call, resolved, own); });
  co_await selecting;
  exchange.lists().close_selection(own, selected.count, selected.finite);

  group.enter("exchange");
  Task<List> exchanging = exchange.run(own);
  const List result = co_await exchanging;

  const List means = means_buffer(group, call, result);
  const auto decide = [&] {
    divide_by_counts(call, result, means);
    return finite(call, group.size(), means);
  };
  const auto finish = [&](bool happened) {
    commit(call, group.size(), own, means, exchange.lists().dropped(), happened);
    if (happened) {
      note(call.delivered, call.entry_type(), result);
    }
    if (happened && call.options.state != nullptr) {
      *call.options.state = selected.next;
    }
  };
  Task<void> settling = settle(group, call.gate.get(), call.d, std::ref(decide), std::ref(finish));
  co_await settling;
}

Collective collective(SparseCall call) {
  if (call.options.gate) {
    call.gate = std::make_shared<StepGate>(call.options.gate);
  }
  if (call.options.algorithm == kAuto) {
    return automatic(call);
  }
  const ResolvedCall resolved = sparse::resolve(call);
  Collective collective;
  collective.name = fmt::format("sparse_all_reduce({})", resolved.algorithm->name);
  collective.agreement = agreement(call, resolved);
  if (call.delivered.values != nullptr) {
    collective.check = check_of_capacity(resolved, call.delivered);
  }
  collective.body = [call = std::move(call), resolved](GroupView& group) {
    return sparse_all_reduce(group, call, resolved, nullptr);
  };
  return collective;
}

}  // namespace gtopk::sparse

namespace gtopk {

namespace {

/// Throws Error{kInvalidArgument} for a residual that does not fit d elements of that type.
void check_residual(const Buffer& residual, std::uint64_t d, DataType dtype) {
  if (residual.data == nullptr ||
      (residual.count == d && residual.dtype == accumulation_type(dtype))) {
    return;
  }
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("sparse_all_reduce of {} elements of {} expected a residual of as many "
                          "elements of {}; seen: {} of {}",
                          d, name_of(dtype), name_of(accumulation_type(dtype)), residual.count,
                          name_of(residual.dtype)));
}

}  // namespace

Collective sparse_all_reduce(Buffer tensor, Buffer residual, const SparseOptions& options) {
  check_residual(residual, tensor.count, tensor.dtype);
  Collective collective =
      sparse::collective({tensor.data, residual.data, tensor.count, tensor.dtype, options, {}, {}});
  collectives::take_host_only(collective,
                              tensor.memory.is_host() ? residual.memory : tensor.memory);
  return collective;
}

Collective sparse_all_reduce(const Buffers& tensor, Buffer residual, const SparseOptions& options,
                             const Delivered& delivered) {
  std::vector<Segment> segments;
  sparse::SparseCall call;
  call.dtype = collectives::type_of_all("sparse_all_reduce", tensor);
  for (const Buffer& piece : tensor) {
    segments.push_back({piece.data, piece.count});
    call.d += piece.count;
  }
  check_residual(residual, call.d, call.dtype);
  const auto pieces = std::make_shared<const std::vector<Segment>>(std::move(segments));
  call.tensor = sparse::Segments<void>(std::span<const Segment>(*pieces));
  call.residual = residual.data;
  call.options = options;
  call.delivered = delivered;
  Collective collective = sparse::collective(std::move(call));
  collectives::take_host_only(collective, collectives::memory_of(tensor, residual.memory));
  collective.body = [pieces, body = std::move(collective.body)](engine::GroupView& group) {
    return body(group);
  };
  return collective;
}

}  // namespace gtopk
