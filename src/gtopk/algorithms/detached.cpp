// Sparse, algorithms: one gradient whose tensor and residual are on a device. The selection comes
// in as a list, and the commit goes out as lists. In between, each algorithm's own exchange runs.
#include "gtopk/detached.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/detached_call.hpp"
#include "src/gtopk/algorithms/exchange_phase.hpp"
#include "src/gtopk/algorithms/resolved_call.hpp"
#include "src/gtopk/algorithms/step_gate.hpp"
#include "src/gtopk/residual/edits.hpp"

namespace gtopk::sparse {

SparseCall detached_call(std::uint64_t d, DataType dtype, const SparseOptions& options,
                         const Delivered& delivered) {
  SparseCall call;
  call.d = d;
  call.dtype = dtype;
  call.options = options;
  call.options.momentum = nullptr;
  call.delivered = delivered;
  return call;
}

std::optional<SelectionRule> rule_on_device(const SparseCall& call, const ResolvedCall& resolved) {
  if (!resolved.algorithm->selects() || resolved.selector->on_device == nullptr) {
    return std::nullopt;
  }
  return call.d == 0 ? SelectionRule{}
                     : resolved.selector->on_device(call.d, resolved.lists.k, call.options);
}

namespace {

using engine::GroupView;
using engine::Task;

/// The most entries that can be returned. An entry that a rank selected is dropped at most once, at
/// any node. In addition, a wire that rounds loses part of each list, whether of a selection or of
/// a node.
std::uint64_t most_returned(const ResolvedCall& resolved, std::uint32_t ranks) {
  const std::uint64_t rounded = resolved.lists.codec->rounds() ? std::uint64_t{ranks} + 1 : 0;
  return (ranks + rounded) * resolved.lists.leaf;
}

/// The names of the selectors that can run on a device, for error messages.
std::string selectors_on_devices() {
  std::string names;
  for (const Choice& choice : selectors()) {
    if (selector_registry().find(choice.name).on_device != nullptr) {
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", choice.name);
    }
  }
  return names;
}

void take_selection(const Detached& step, const List& own, const ResolvedCall& resolved) {
  if (step.report->kept > resolved.lists.leaf) {
    throw std::logic_error(fmt::format("a device selected {} entries, expected at most {}",
                                       step.report->kept, resolved.lists.leaf));
  }
  const EntryType type = resolved.lists.type;
  const List from = list_at(step.selected, step.report->kept);
  std::copy_n(from.indices, from.capacity * type.index_bytes, own.indices);
  std::copy_n(from.values, from.capacity * type.value_bytes(), own.values);
}

EditCounts edits_of(const Detached& step, const SparseCall& call, const ResolvedCall& resolved,
                    std::uint32_t ranks, const List& own, const List& result,
                    std::span<const List> dropped) {
  EditCounts counts;
  visit_entry(resolved.lists.type, [&]<class Value, class Index>() {
    std::array<Entries<Value, Index>, kMostDropped> left_out;
    std::ranges::transform(dropped, left_out.begin(),
                           [](const List& list) { return list.entries<Value, Index>(); });
    const auto output_at = [](const DetachedEntries& entries) {
      return EntriesOut<Value, Index>{static_cast<Index*>(entries.indices),
                                      static_cast<Value*>(entries.values)};
    };
    const Edits<Value, Index> edits{static_cast<Index*>(step.cleared), output_at(step.returned),
                                    output_at(step.delivered)};
    const StepLists<Value, Index> lists{.own = own.entries<Value, Index>(),
                                        .result = result.entries<Value, Index>(),
                                        .dropped = std::span(left_out).first(dropped.size()),
                                        .put_back = call.options.put_back};
    counts = make_edits(lists, most_returned(resolved, ranks), edits);
  });
  return counts;
}

}  // namespace

DetachedCapacity capacity_of(const ResolvedCall& resolved, std::uint32_t ranks) {
  return {.selected = resolved.lists.leaf,
          .cleared = resolved.lists.leaf,
          .returned = most_returned(resolved, ranks),
          .delivered = resolved.most_entries(ranks),
          .index_bytes = resolved.lists.type.index_bytes};
}

Task<void> run_detached(GroupView& group, Detached step, SparseCall call, ResolvedCall resolved,
                        std::unique_ptr<engine::Turn> turn) {
  const GiveUpGate unless_it_arrives(call.gate.get());
  ExchangePhase exchange(group, resolved, std::move(turn));
  group.enter("compress");
  List own = exchange.lists().make(resolved.lists.leaf);
  take_selection(step, own, resolved);
  exchange.lists().close_selection(own, step.report->kept, step.report->finite != 0);

  group.enter("exchange");
  Task<List> exchanging = exchange.run(own);
  const List result = co_await exchanging;

  const List means = means_buffer(group, call, result);
  const auto decide = [&] {
    divide_by_counts(call, result, means);
    return finite(call, group.size(), means);
  };
  const auto finish = [&](bool happened) {
    *step.counts = {};
    if (!happened) {
      return;
    }
    *step.counts =
        edits_of(step, call, resolved, group.size(), own, means, exchange.lists().dropped());
    note(call.delivered, resolved.lists.type, result);
    if (call.options.state != nullptr) {
      *call.options.state = step.next == nullptr ? SelectorState{} : *step.next;
    }
  };
  Task<void> settling =
      settle(group, call.gate.get(), resolved.lists.leaf, std::ref(decide), std::ref(finish));
  co_await settling;
}

}  // namespace gtopk::sparse

namespace gtopk {

std::optional<DetachedCapacity> detached_capacity(std::uint64_t d, DataType dtype,
                                                  const SparseOptions& options,
                                                  std::uint32_t ranks) {
  if (options.algorithm == sparse::kAuto || !selection_rule(d, dtype, options)) {
    return std::nullopt;
  }
  return sparse::capacity_of(sparse::resolve(sparse::detached_call(d, dtype, options, {})), ranks);
}

std::optional<SelectionRule> selection_rule(std::uint64_t d, DataType dtype,
                                            const SparseOptions& options) {
  const sparse::SparseCall call = sparse::detached_call(d, dtype, options, {});
  return options.algorithm == sparse::kAuto ? sparse::rule_of_lists(call, sparse::candidates(call))
                                            : sparse::rule_on_device(call, sparse::resolve(call));
}

double detached_divisor(const SparseOptions& options, std::uint32_t ranks) {
  return sparse::divisor_of<double>(options, ranks);
}

Collective sparse_all_reduce(const Detached& step, std::uint64_t d, DataType dtype,
                             const SparseOptions& options, const Delivered& delivered) {
  sparse::SparseCall call = sparse::detached_call(d, dtype, options, delivered);
  if (options.gate) {
    call.gate = std::make_shared<sparse::StepGate>(options.gate);
  }
  const sparse::ResolvedCall resolved = sparse::resolve(call);
  if (!sparse::rule_on_device(call, resolved)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce of a selection made elsewhere takes one of the "
                            "selectors {} ('block' only with blocks that a device supports) and an "
                            "algorithm that selects; given select '{}' with algorithm '{}'",
                            sparse::selectors_on_devices(), options.selector, options.algorithm));
  }
  Collective collective;
  collective.name = fmt::format("sparse_all_reduce({})", resolved.algorithm->name);
  collective.agreement = sparse::agreement(call, resolved);
  collective.check = sparse::check_of_capacity(resolved, delivered);
  collective.body = [step, call, resolved](engine::GroupView& group) {
    return sparse::run_detached(group, step, call, resolved, nullptr);
  };
  return collective;
}

}  // namespace gtopk
