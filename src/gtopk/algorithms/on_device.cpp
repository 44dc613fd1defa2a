// Sparse, algorithms room: the way of one gradient whose lists of entries, too, stay on a device.
// Only headers and reports are in host memory; the walk is the algorithm's own.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gtopk/collectives.hpp"
#include "gtopk/device_lists.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/memory.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/call_plan.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/detached_call.hpp"
#include "src/gtopk/algorithms/device_nodes.hpp"
#include "src/gtopk/algorithms/exchange_phase.hpp"
#include "src/gtopk/algorithms/step_gate.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

static_assert(kMostDropped <= ListEdits::kMostDropped);

/// Whether the call's lists can stay on a device, among more than one rank.
bool may_stay(const SparseCall& call, const Plan& plan) {
  constexpr std::uint64_t kLongest = std::uint64_t{1} << 54U;  // device/decode.hpp
  return plan.algorithm->only_merges && !plan.lists.blocks && plan.lists.codec->on_device() &&
         call.d != 0 && call.d < kLongest && rule_on_device(call, plan).has_value();
}

/// For messages.
std::string wires_on_devices() {
  std::string names;
  for (const Choice& choice : wires()) {
    if (codec_registry().find(choice.name).codec.on_device()) {
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", choice.name);
    }
  }
  return names;
}

/// For messages.
std::string algorithms_that_only_merge() {
  std::string names;
  for (const Choice& choice : algorithm_registry().choices()) {
    const AlgorithmRow& row = algorithm_registry().find(choice.name);
    if (row.only_merges) {
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", row.name);
    }
  }
  return names;
}

Task<void> run_on_device(GroupView& group, ListsOnDevice step, SparseCall call, Plan plan) {
  const GiveUpGate unless_it_arrives(call.gate.get());
  DeviceNodes nodes(group, plan.lists, step, call.delivered.values != nullptr);
  ExchangePhase exchange(group, plan, nullptr, &nodes);
  group.enter("compress");
  const List own = nodes.own();

  group.enter("exchange");
  Task<List> exchanging = exchange.run(own);
  const List result = co_await exchanging;
  Task<bool> inspecting = nodes.inspected(result);
  const bool finite = co_await inspecting;

  const std::uint64_t noted = call.delivered.values != nullptr ? nodes.copy().size : 0;
  const auto decide = [&] { return finite; };
  const auto finish = [&](bool happened) {
    nodes.write_edits(own, result, call.options.put_back, happened);
    if (happened) {
      note(call.delivered, plan.lists.type, nodes.copy());
    }
    if (happened && call.options.state != nullptr) {
      *call.options.state = step.next == nullptr ? SelectorState{} : *step.next;
    }
  };
  Task<void> settling = settle(group, call.gate.get(), noted, std::ref(decide), std::ref(finish));
  co_await settling;
}

}  // namespace
}  // namespace gtopk::sparse

namespace gtopk {

std::optional<DeviceListRoom> device_list_room(std::uint64_t d, DataType dtype,
                                               const SparseOptions& options, std::uint32_t ranks,
                                               bool noted) {
  if (options.algorithm == sparse::kAuto) {
    return std::nullopt;
  }
  const sparse::SparseCall call = sparse::detached_call(d, dtype, options, {});
  const sparse::Plan plan = sparse::plan(call);
  if (ranks < 2 || !sparse::may_stay(call, plan)) {
    return std::nullopt;
  }
  return sparse::room_on_device(plan.lists, ranks, noted);
}

Collective sparse_all_reduce(const ListsOnDevice& step, std::uint64_t d, DataType dtype,
                             const SparseOptions& options, const Delivered& delivered) {
  sparse::SparseCall call = sparse::detached_call(d, dtype, options, delivered);
  if (options.gate) {
    call.gate = std::make_shared<sparse::StepGate>(options.gate);
  }
  const sparse::Plan plan = sparse::plan(call);
  if (!sparse::may_stay(call, plan)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce of lists on a device takes algorithm {}, wire {}, "
                            "and a selector that a device has and that is not per block; given "
                            "'{}', '{}' and '{}'",
                            sparse::algorithms_that_only_merge(), sparse::wires_on_devices(),
                            options.algorithm, options.wire, options.selector));
  }
  Collective collective;
  collective.name = fmt::format("sparse_all_reduce({})", plan.algorithm->name);
  collective.agreement = sparse::agreement(call, plan);
  collective.check = sparse::check_of_room(plan, delivered);
  collectives::take_moved(collective, step.device->memory());
  collective.body = [step, call, plan](engine::GroupView& group) {
    return sparse::run_on_device(group, step, call, plan);
  };
  return collective;
}

}  // namespace gtopk
