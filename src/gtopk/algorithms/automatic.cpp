#include "src/gtopk/algorithms/automatic.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/detached_call.hpp"
#include "src/gtopk/algorithms/step_gate.hpp"
#include "src/gtopk/plan/choose.hpp"
#include "src/gtopk/plan/planner.hpp"
#include "src/numbers/check_known.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

struct Decision {
  std::size_t index = 0;
  PlanReport report;
};

/// The decision is a pure function of values on which all ranks have agreed.
Decision decide(const std::vector<ResolvedCall>& calls, const Planner& planner) {
  std::vector<Candidate> candidates;
  for (const ResolvedCall& resolved : calls) {
    CriticalPath path({.routes = &*planner.routes,
                       .d = resolved.lists.d,
                       .k = resolved.lists.k,
                       .type = resolved.lists.type,
                       .codec = resolved.lists.codec,
                       .per_block = resolved.selects_per_block(),
                       .counted = resolved.lists.counted});
    resolved.algorithm->cost(path);
    candidates.push_back({resolved.algorithm->name, path.work()});
  }
  Chosen chosen = choose(candidates, *planner.costs);
  Decision decision;
  decision.index = chosen.index;
  decision.report.algorithm = candidates[chosen.index].algorithm;
  decision.report.reason = std::move(chosen.reason);
  decision.report.predictions = std::move(chosen.predictions);
  decision.report.costs = *planner.costs;
  decision.report.measured_by = planner.measured_by;
  return decision;
}

std::uint64_t tensor_bytes(const SparseCall& call) { return call.d * size_of(call.dtype); }

/// The agreement before anything is chosen. k is the one for list algorithms; d and similar
/// arguments are the same for all.
Agreement asked(const SparseCall& call, const std::vector<ResolvedCall>& calls) {
  const auto of_lists = std::ranges::find_if(
      calls, [](const ResolvedCall& resolved) { return resolved.algorithm->takes_k(); });
  const ResolvedCall& resolved = of_lists == calls.end() ? calls.front() : *of_lists;
  return agreement(call, resolved, kAuto).word("semantics", to_string(call.options.semantics));
}

/// `selected` is the selection that a device has made, valid for any list algorithm. If empty, this
/// rank has its own tensor.
Task<void> reduce_automatically(GroupView& group, SparseCall call, std::vector<ResolvedCall> calls,
                                std::optional<Detached> selected) {
  const GiveUpGate unless_it_arrives(call.gate.get());
  std::unique_ptr<engine::Turn> turn;
  Task<void> knowing = know_costs(group, turn, tensor_bytes(call), false, asked(call, calls));
  co_await knowing;
  const Planner& planner = planner_of(group);
  Decision decision = decide(calls, planner);
  const ResolvedCall& resolved = calls[decision.index];
  group.agree_on(with_costs(asked(call, calls).word("chosen", resolved.algorithm->name), planner));

  const transport::TimePoint begin = group.now();
  const bool detached = selected && resolved.algorithm->selects();
  Task<void> reducing = detached ? run_detached(group, *selected, call, resolved, std::move(turn))
                                 : sparse_all_reduce(group, call, resolved, std::move(turn));
  co_await reducing;
  decision.report.actual_seconds = std::chrono::duration<double>(group.now() - begin).count();
  group.per_group_state().of<PlanReport>() =
      std::move(decision.report);  // read by Communicator::last_plan()
}

Task<void> plan_only(GroupView& group, std::vector<ResolvedCall> calls, std::uint64_t bytes,
                     PlanReport& report, bool anew, Agreement asked) {
  std::unique_ptr<engine::Turn> turn;
  co_await know_costs(group, turn, bytes, anew, asked);
  group.agree_on(with_costs(asked, planner_of(group)));
  // Ranks that ask for different plans get an error, whether or not anything was measured.
  co_await collectives::agree(group);
  report = decide(calls, planner_of(group)).report;
}

}  // namespace

std::vector<ResolvedCall> candidates(const SparseCall& call) {
  std::vector<ResolvedCall> calls;
  const SparseOptions& options = call.options;
  check_known(options.semantics, "semantics");
  // Check with an algorithm that takes every selector, to find errors that do not depend on it.
  SparseCall as = call;
  as.options.semantics = Semantics::kAny;
  as.options.algorithm = kTopk.name;
  const ResolvedCall of_topk = resolve(as);
  const bool ties = of_topk.codec->codec.ties();
  for (const Choice& choice : algorithm_registry().choices()) {
    const AlgorithmRow& row = algorithm_registry().find(choice.name);
    if (row.cost == nullptr || (ties && row.selects() && row.reselects) ||
        (of_topk.lists.counted && !row.counts())) {
      continue;
    }
    as.options.algorithm = choice.name;
    const ResolvedCall one = resolve(as);
    const bool another = row.only_coded && one.coder() == nullptr;
    if (one.satisfies(options.semantics) && !another) {
      calls.push_back(one);
    }
  }
  if (calls.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("algorithm 'auto': no algorithm supports semantics '{}' with select "
                            "'{}', wire '{}' and a mean over {}; allow more, for example with "
                            "semantics 'any'",
                            to_string(options.semantics), options.selector, options.wire,
                            to_string(options.mean)));
  }
  return calls;
}

std::optional<SelectionRule> rule_of_lists(const SparseCall& call,
                                           const std::vector<ResolvedCall>& calls) {
  const auto of_lists = std::ranges::find_if(
      calls, [](const ResolvedCall& resolved) { return resolved.algorithm->selects(); });
  return of_lists == calls.end() ? std::nullopt : rule_on_device(call, *of_lists);
}

namespace {

Collective chosen_later(const SparseCall& call, const std::optional<Detached>& selected) {
  if (call.delivered.values != nullptr) {
    throw Error(
        ErrorKind::kInvalidArgument,
        "algorithm 'auto' cannot record what is delivered, as it may deliver anything from k "
        "entries to all: name an algorithm, such as the one that plan() chooses");
  }
  const std::vector<ResolvedCall> calls = candidates(call);
  Collective collective;
  collective.name = "sparse_all_reduce(auto)";
  collective.agreement = asked(call, calls);
  collective.body = [call, calls, selected](GroupView& group) {
    return reduce_automatically(group, call, calls, selected);
  };
  collective.failed = forget_costs;
  return collective;
}

/// The call of the algorithm that sums all of acc, or null if it is not among these.
const ResolvedCall* call_of_sums(const std::vector<ResolvedCall>& calls) {
  const auto whole = std::ranges::find_if(
      calls, [](const ResolvedCall& resolved) { return !resolved.algorithm->selects(); });
  return whole == calls.end() ? nullptr : &*whole;
}

/// Whether each of these calls can continue from a device's selection, or sums all of acc.
bool all_take_a_device(const SparseCall& call, const std::vector<ResolvedCall>& calls) {
  return call.d != 0 && rule_of_lists(call, calls) &&
         std::ranges::all_of(calls, [&](const ResolvedCall& resolved) {
           return resolved.algorithm->selects() ||
                  (resolved.algorithm->on_device != nullptr && resolved.coder() == nullptr &&
                   &resolved == call_of_sums(calls) &&
                   resolved.algorithm->on_device(call.d, resolved.lists.k).whole);
         });
}

}  // namespace

Collective automatic(const SparseCall& call) { return chosen_later(call, std::nullopt); }
Collective automatic(const SparseCall& call, const Detached& selected) {
  return chosen_later(call, selected);
}

Collective planning(const SparseCall& call, PlanReport& report, bool anew) {
  const std::vector<ResolvedCall> calls = candidates(call);
  Collective collective;
  collective.name = "plan";
  // Errors print this: the planned call, with a word that says that it is only planned.
  collective.agreement = asked(call, calls).word("only", anew ? "plan, anew" : "plan");
  collective.body = [calls, bytes = tensor_bytes(call), &report, anew,
                     asked = collective.agreement](GroupView& group) {
    return plan_only(group, calls, bytes, report, anew, asked);
  };
  collective.failed = forget_costs;
  return collective;
}

}  // namespace gtopk::sparse

namespace gtopk {

void check_options(const SparseOptions& options) {
  sparse::SparseCall call;
  call.d = 1;
  call.options = options;
  if (options.algorithm == sparse::kAuto) {
    static_cast<void>(sparse::candidates(call));
  } else {
    static_cast<void>(sparse::resolve(call));
  }
  const bool per_block = sparse::selector_registry().find(options.selector).per_block;
  if (!per_block && options.block != SparseOptions().block) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("block = {} needs select '{}', seen '{}'", options.block,
                            sparse::kBlock.name, options.selector));
  }
}

std::optional<AutoCapacity> auto_capacity(std::uint64_t d, DataType dtype,
                                          const SparseOptions& options, std::uint32_t ranks) {
  if (options.algorithm != sparse::kAuto) {
    return std::nullopt;
  }
  const sparse::SparseCall call = sparse::detached_call(d, dtype, options, {});
  const std::vector<sparse::ResolvedCall> calls = sparse::candidates(call);
  if (!sparse::all_take_a_device(call, calls)) {
    return std::nullopt;
  }
  AutoCapacity capacity;
  for (const sparse::ResolvedCall& resolved : calls) {
    capacity.acc.index_bytes = resolved.lists.type.index_bytes;
    if (!resolved.algorithm->selects()) {
      capacity.acc.sums = d;
      continue;
    }
    const DetachedCapacity one = sparse::capacity_of(resolved, ranks);
    capacity.lists = {.selected = std::max(capacity.lists.selected, one.selected),
                      .cleared = std::max(capacity.lists.cleared, one.cleared),
                      .returned = std::max(capacity.lists.returned, one.returned),
                      .delivered = std::max(capacity.lists.delivered, one.delivered),
                      .index_bytes = one.index_bytes};
  }
  return capacity;
}

Collective sparse_all_reduce(const AutoOnDevice& step, std::uint64_t d, DataType dtype,
                             const SparseOptions& options) {
  sparse::SparseCall call = sparse::detached_call(d, dtype, options, {});
  if (!auto_capacity(d, dtype, options, 1)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce of a tensor on a device by algorithm 'auto' takes a "
                            "selector that a device has and a tensor that is not empty; given "
                            "algorithm '{}', select '{}' and {} elements",
                            options.algorithm, options.selector, d));
  }
  call.device = step.acc;
  if (options.gate) {
    call.gate = std::make_shared<sparse::StepGate>(options.gate);
  }
  return sparse::automatic(call, step.lists);
}

Collective plan(std::uint64_t d, DataType dtype, const SparseOptions& options, PlanReport& report,
                bool anew) {
  sparse::SparseCall call;
  call.d = d;
  call.dtype = dtype;
  call.options = options;
  return sparse::planning(call, report, anew);
}

}  // namespace gtopk
