#include "src/gtopk/algorithms/sparse_all_reduce.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/check_known.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Task;

/// Smaller sweeps are done where they are: handing them to another thread would take longer.
constexpr std::uint64_t kInlineElements = 1U << 15U;

/// Working storage, kept from call to call: of the engine's thread and of the one beside it.
struct Workspace {
  SelectScratch select;
  MergeScratch merge;
};
Workspace& workspace_of_this_thread() {
  static thread_local Workspace workspace;
  return workspace;
}

/// Long lists exchange one operation after the other; short ones pass them by. The place in line is
/// taken before anything is awaited, here or by who hands it in, and given up when the last list
/// has left.
class ExchangePhase {
 public:
  ExchangePhase(GroupView& group, const Plan& plan, std::unique_ptr<engine::Turn> turn)
      : plan_(plan),
        exchange_(group, plan.lists, workspace_of_this_thread().merge),
        handed_in_(std::move(turn)) {
    if (!exchange_.long_lists()) {
      handed_in_.reset();
    } else if (!handed_in_) {
      turn_.emplace(group);
    }
  }

  [[nodiscard]] ListExchange& lists() { return exchange_; }

  Task<List> run(List own) {
    if (turn_) {
      engine::Turn& mine = *turn_;
      co_await mine;
    }
    Task<List> walking = plan_.algorithm->walk(exchange_, own);
    const List result = co_await walking;
    Task<void> departing = exchange_.departed();
    co_await departing;
    turn_.reset();
    handed_in_.reset();
    co_return result;
  }

 private:
  const Plan& plan_;
  ListExchange exchange_;
  std::optional<engine::Turn> turn_;
  std::unique_ptr<engine::Turn> handed_in_;  // its operation has it already
};

Selection select(const SparseCall& call, const Plan& plan, const List& own) {
  const SelectorState* const last = call.options.state;
  return plan.selector->select({.tensor = call.tensor,
                                .residual = call.residual,
                                .d = call.d,
                                .dtype = call.dtype,
                                .k = plan.lists.k,
                                .entry = plan.lists.type,
                                .density = call.options.density,
                                .block = call.options.block,
                                .state = last == nullptr ? SelectorState{} : *last},
                               own, workspace_of_this_thread().select);
}

/// Calls visit<T, Index>() with the types of the call's tensor and lists.
template <class Visit>
void visit_types(const SparseCall& call, const Plan& plan, const Visit& visit) {
  visit_floating(call.dtype, [&]<class T>() {
    if (plan.lists.type.index_bytes == 8) {
      visit.template operator()<T, std::uint64_t>();
    } else {
      visit.template operator()<T, std::uint32_t>();
    }
  });
}

template <class T, class Index>
void commit_as(const SparseCall& call, std::uint32_t ranks, const List& own, const List& result,
               std::span<const List> dropped) {
  using Value = Accumulation<T>;
  const Segments<T> tensor(call.tensor);
  const auto delivered = result.entries<Value, Index>();
  std::array<Entries<Value, Index>, kMostDropped> put_back;
  std::ranges::transform(dropped, put_back.begin(),
                         [](const List& list) { return list.entries<Value, Index>(); });
  commit<T, Value, Index>(tensor, static_cast<Value*>(call.residual), call.d,
                          own.entries<Value, Index>(), delivered, put_back.data(), dropped.size(),
                          call.options.put_back, divisor_of<Value>(call.options, ranks));
  note(call.delivered, delivered);
}

/// Whether every value of the result, divided and rounded, is finite.
bool finite(const SparseCall& call, const Plan& plan, std::uint32_t ranks, const List& result) {
  if (!result.finite) return false;
  bool fits = false;
  visit_types(call, plan, [&]<class T, class Index>() {
    using Value = Accumulation<T>;
    fits = representable<T, Value, Index>(result.entries<Value, Index>(),
                                          divisor_of<Value>(call.options, ranks));
  });
  return fits;
}

/// Writes tensor and residual; NaN, and no residual, unless the step has happened.
void commit(const SparseCall& call, const Plan& plan, std::uint32_t ranks, const List& own,
            const List& result, std::span<const List> dropped, bool happened) {
  visit_types(call, plan, [&]<class T, class Index>() {
    if (!happened) {
      fill_nan(Segments<T>(call.tensor), call.d);
      return;
    }
    commit_as<T, Index>(call, ranks, own, result, dropped);
  });
}

void check(const SparseCall& call) {
  const SparseOptions& options = call.options;
  check_known(call.dtype, "data type");
  check_known(options.op, "reduction");
  check_known(options.put_back, "put_back");
  check_known(options.semantics, "semantics");
  if (!is_floating(call.dtype)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce takes float32, float64, bfloat16 or float16, not {}",
                            to_string(call.dtype)));
  }
  if (!(options.scale > 0 && std::isfinite(options.scale))) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("sparse_all_reduce needs a finite scale above 0, seen {}", options.scale));
  }
  if (options.op != ReduceOp::kSum && options.op != ReduceOp::kAvg) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("sparse_all_reduce takes ReduceOp SUM or AVG, not {}", to_string(options.op)));
  }
}

/// The names of the algorithms that exchange lists and never select from merged ones.
std::string algorithms_without_reselection() {
  std::vector<std::string_view> names;
  for (const Choice& choice : algorithm_registry().choices()) {
    const AlgorithmRow& row = algorithm_registry().find(choice.name);
    if (row.selects() && !row.reselects) names.push_back(choice.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void check_wire(const Plan& plan) {
  if (plan.algorithm->selects() && plan.algorithm->reselects && plan.codec->codec.ties()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("wire '{}' makes many values of a list equal, between which '{}' would "
                    "select by index alone; algorithms that do not select again: {}",
                    plan.codec->name, plan.algorithm->name, algorithms_without_reselection()));
  }
}

/// k of one rank's selection, however it was asked for.
std::uint64_t entries_wanted(const SparseCall& call, const Plan& plan) {
  const SparseOptions& options = call.options;
  if (!plan.algorithm->takes_k()) return call.d;
  const bool per_block = plan.selects_per_block();
  if (per_block && plan.algorithm->bounded) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("select '{}' has a k of each block, which '{}' would undo by selecting "
                            "again from all: use an algorithm that does not, such as topk",
                            plan.selector->name, plan.algorithm->name));
  }
  if (per_block && options.block == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("select '{}' needs block >= 1, seen 0", plan.selector->name));
  }
  if (options.k != 0 && (per_block || options.density != 0)) {
    throw Error(ErrorKind::kInvalidArgument,
                per_block ? fmt::format("select '{}' takes a density and no k, seen k = {}",
                                        plan.selector->name, options.k)
                          : fmt::format("sparse_all_reduce takes k or a density, seen k = {} and "
                                        "density = {}",
                                        options.k, options.density));
  }
  if (options.k != 0) return std::min(options.k, call.d);
  if (options.density == 0 && !per_block) {
    if (call.d == 0) return 0;
    throw Error(ErrorKind::kInvalidArgument, "sparse_all_reduce needs k >= 1, seen 0");
  }
  if (!(options.density > 0 && options.density <= 1)) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("sparse_all_reduce needs a density in (0, 1], seen {}", options.density));
  }
  return per_block ? selection_size(call.d, options.density, options.block)
                   : selection_size(call.d, options.density);
}

}  // namespace

Plan plan(const SparseCall& call) {
  check(call);
  const SparseOptions& options = call.options;
  Plan plan;
  plan.algorithm = &algorithm_registry().find(options.algorithm);
  plan.selector = &selector_registry().find(options.selector);
  plan.codec = &codec_registry().find(options.wire);
  if (plan.algorithm->keeps > options.semantics) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("semantics '{}' rules out algorithm '{}', which keeps '{}'",
                            to_string(options.semantics), plan.algorithm->name,
                            to_string(plan.algorithm->keeps)));
  }
  const bool wide = call.d > std::numeric_limits<std::uint32_t>::max();
  plan.lists.type = {accumulation_type(call.dtype), wide ? 8U : 4U};
  plan.lists.d = call.d;
  check_wire(plan);
  plan.lists.k = entries_wanted(call, plan);
  plan.lists.leaf =
      plan.algorithm->selects() ? plan.selector->most_of(call.d, plan.lists.k) : plan.lists.k;
  plan.lists.reselects = plan.algorithm->reselects;
  plan.lists.codec = &plan.codec->codec;
  return plan;
}

Agreement agreement(const SparseCall& call, const Plan& plan, std::string_view algorithm) {
  Agreement agreement("sparse_all_reduce");
  agreement.word("algorithm", algorithm)
      .number("d", call.d)
      .number("k", plan.lists.k)
      .type("dtype", call.dtype)
      .word("op", to_string(call.options.op))
      .word("put_back", to_string(call.options.put_back))
      .word("select", plan.selector->name)
      .word("wire", plan.codec->name);
  if (plan.algorithm->draws) {
    call.options.seed ? agreement.number("seed", *call.options.seed)
                      : agreement.word("seed", "the call's number");
  }
  if (plan.selects_per_block()) agreement.number("block", call.options.block);
  if (call.options.scale != 1) {
    const double scale = call.options.scale;
    const auto whole = static_cast<std::uint64_t>(std::min(scale, 0x1p63));
    static_cast<double>(whole) == scale
        ? agreement.number("scale", whole)
        : agreement.number("bits of the scale", std::bit_cast<std::uint64_t>(scale));
  }
  if (call.options.gate) agreement.number("gate", call.options.gate->arrivals());
  return agreement;
}

Task<void> sparse_all_reduce(GroupView& group, SparseCall call, Plan plan,
                             std::unique_ptr<engine::Turn> turn) {
  const GiveUpGate unless_it_arrives(call.gate.get());
  if (!plan.algorithm->selects()) {
    turn.reset();
    call.options.k = plan.lists.k;  // however it was asked for
    Task<void> whole = plan.algorithm->whole(group, call);
    co_await whole;
    co_return;
  }
  ExchangePhase exchange(group, plan, std::move(turn));
  group.enter("compress");
  const auto sweep = [&](auto work) -> Task<void> {
    if (call.d <= kInlineElements) {
      work();
    } else {
      Computation beside = group.compute([&work] { work(); });
      co_await beside;
    }
  };

  List own = exchange.lists().make(plan.lists.leaf);
  Selection selected;
  Task<void> selecting = sweep([&] { selected = select(call, plan, own); });
  co_await selecting;
  exchange.lists().close_selection(own, selected.count, selected.finite);
  group.enter("exchange");

  Task<List> exchanging = exchange.run(own);
  const List result = co_await exchanging;
  Task<bool> passing = pass(group, call.gate.get(), finite(call, plan, group.size(), result));
  const bool happened = co_await passing;

  group.enter("commit");
  Task<void> committing = sweep([&] {
    commit(call, plan, group.size(), own, result, exchange.lists().dropped(), happened);
    if (happened && call.options.state != nullptr) *call.options.state = selected.next;
  });
  co_await committing;
}

namespace {

void check_room(const Plan& plan, const Delivered& delivered, std::uint32_t ranks) {
  const std::uint64_t largest = plan.most_entries(ranks);
  if (delivered.values != nullptr && delivered.room < largest) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("sparse_all_reduce({}) among {} ranks delivers up to {} entries; there is "
                    "room to note {}",
                    plan.algorithm->name, ranks, largest, delivered.room));
  }
}

}  // namespace

Collective collective(SparseCall call) {
  if (call.options.gate) call.gate = std::make_shared<StepGate>(call.options.gate);
  if (call.options.algorithm == kAuto) return automatic(call);
  const Plan plan = sparse::plan(call);
  Collective collective;
  collective.name = fmt::format("sparse_all_reduce({})", plan.algorithm->name);
  collective.agreement = agreement(call, plan);
  if (call.delivered.values != nullptr) {
    collective.check = [plan, delivered = call.delivered](const GroupShape& group) {
      check_room(plan, delivered, group.size);
    };
  }
  collective.body = [call = std::move(call), plan](GroupView& group) {
    return sparse_all_reduce(group, call, plan, nullptr);
  };
  return collective;
}

namespace {

/// What can be said of it without a group.
Plan plan_preselected(const SparseCall& call, const Preselected& entries) {
  if (call.options.algorithm == kAuto) {
    throw Error(ErrorKind::kInvalidArgument, "exchange takes the name of an algorithm, not 'auto'");
  }
  const Plan plan = sparse::plan(call);
  if (!plan.algorithm->selects()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange takes lists of entries: {} selects nothing", plan.algorithm->name));
  }
  if (plan.lists.type.index_bytes != sizeof(std::uint32_t)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("exchange takes indices of 32 bits, d = {} needs more", call.d));
  }
  if (entries.indices.size() > plan.lists.k || entries.values.size() != entries.indices.size()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange({}) of k = {}: {} indices and {} values given", plan.algorithm->name,
                    plan.lists.k, entries.indices.size(), entries.values.size()));
  }
  return plan;
}

void check_room(const Plan& plan, const Preselected& entries, std::uint32_t ranks) {
  const std::uint64_t largest = plan.most_entries(ranks);
  if (entries.result_indices.size() < largest || entries.result_values.size() < largest) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange({}) of k = {} among {} ranks has up to {} entries; results have room "
                    "for {} indices and {} values",
                    plan.algorithm->name, plan.lists.k, ranks, largest,
                    entries.result_indices.size(), entries.result_values.size()));
  }
}

Task<void> exchange_preselected(GroupView& group, Preselected entries, Plan plan) {
  ExchangePhase exchange(group, plan, nullptr);
  group.enter("exchange");
  List own = exchange.lists().make(plan.lists.k);
  const auto room = own.room<float, std::uint32_t>();
  std::ranges::copy(entries.indices, room.indices);
  std::ranges::copy(entries.values, room.values);
  exchange.lists().close_selection(own, entries.indices.size(), true);
  Task<List> exchanging = exchange.run(own);
  const List result = co_await exchanging;
  const auto delivered = result.entries<float, std::uint32_t>();
  std::copy_n(delivered.indices, delivered.size, entries.result_indices.begin());
  std::copy_n(delivered.values, delivered.size, entries.result_values.begin());
  *entries.result_count = delivered.size;
}

}  // namespace
}  // namespace gtopk::sparse

namespace gtopk {

std::string_view to_string(PutBack put_back) {
  switch (put_back) {
    case PutBack::kOwn:
      return "own";
    case PutBack::kMerged:
      return "merged";
  }
  return "unknown";
}

std::string_view to_string(Semantics semantics) {
  switch (semantics) {
    case Semantics::kExactSum:
      return "exact_sum";
    case Semantics::kGtopk:
      return "gtopk";
    case Semantics::kAny:
      return "any";
  }
  return "unknown";
}

Collective sparse_all_reduce(void* tensor, void* residual, std::uint64_t d, DataType dtype,
                             const SparseOptions& options) {
  return sparse::collective({tensor, residual, d, dtype, options, {}, {}});
}

Collective sparse_all_reduce(std::vector<Segment> tensor, void* residual, DataType dtype,
                             const SparseOptions& options, const Delivered& delivered) {
  const auto pieces = std::make_shared<const std::vector<Segment>>(std::move(tensor));
  sparse::SparseCall call;
  call.tensor = sparse::Segments<void>(std::span<const Segment>(*pieces));
  call.residual = residual;
  for (const Segment& piece : *pieces) call.d += piece.size;
  call.dtype = dtype;
  call.options = options;
  call.delivered = delivered;
  Collective collective = sparse::collective(std::move(call));
  collective.body = [pieces, body = std::move(collective.body)](engine::GroupView& group) {
    return body(group);
  };
  return collective;
}

std::uint64_t most_delivered(std::uint64_t d, const SparseOptions& options, std::uint32_t ranks) {
  sparse::SparseCall call;
  call.d = d;
  call.options = options;
  return sparse::plan(call).most_entries(ranks);
}

Collective exchange(const Preselected& entries, std::uint64_t d, const SparseOptions& options) {
  sparse::SparseCall call;
  call.d = d;
  call.options = options;
  const sparse::Plan plan = sparse::plan_preselected(call, entries);
  Collective collective;
  collective.name = fmt::format("exchange({})", plan.algorithm->name);
  collective.agreement = sparse::agreement(call, plan);
  collective.check = [plan, entries](const GroupShape& group) {
    sparse::check_room(plan, entries, group.size);
  };
  collective.body = [plan, entries](engine::GroupView& group) {
    return sparse::exchange_preselected(group, entries, plan);
  };
  return collective;
}

}  // namespace gtopk
