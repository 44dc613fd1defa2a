#include "src/gtopk/algorithms/call_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/numbers/check_known.hpp"

namespace gtopk::sparse {
namespace {

/// The divisor of sums must be finite, for an average over any number of ranks. Otherwise results
/// would be 0, and what was sent lost. A divisor that underflows makes results non-finite.
void check_scale(const SparseCall& call) {
  constexpr double kMostRanks = 0x1p32;
  const double scale = call.options.scale;
  if (!(scale > 0 && std::isfinite(scale))) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce needs a finite scale above 0, seen {}", scale));
  }
  const double ranks = call.options.op == ReduceOp::kAvg ? kMostRanks : 1;
  const double largest = accumulation_type(call.dtype) == DataType::kFloat64
                             ? std::numeric_limits<double>::max()
                             : double{std::numeric_limits<float>::max()};
  if (ranks / scale > largest) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("sparse_all_reduce {} of {} needs a scale of at least {:.3g}, seen {}",
                    to_string(call.options.op), to_string(call.dtype), ranks / largest, scale));
  }
}

void check(const SparseCall& call) {
  const SparseOptions& options = call.options;
  check_known(call.dtype, "data type");
  check_known(options.op, "reduction");
  check_known(options.put_back, "put_back");
  check_known(options.mean, "mean");
  check_known(options.semantics, "semantics");
  if (!is_floating(call.dtype)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce takes float32, float64, bfloat16 or float16, not {}",
                            to_string(call.dtype)));
  }
  check_scale(call);
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
    if (row.selects() && !row.reselects) {
      names.push_back(choice.name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Requires an algorithm whose whole sums have known contributors.
void check_mean(const SparseCall& call, const Plan& plan) {
  if (call.options.mean == MeanOver::kRanks) {
    return;
  }
  if (call.options.op != ReduceOp::kAvg) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a mean over {} needs ReduceOp AVG, seen {}",
                            to_string(call.options.mean), to_string(call.options.op)));
  }
  if (!plan.algorithm->counts()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a mean over {} needs whole sums of what ranks select, which '{}' does "
                            "not deliver; algorithms that do: {}",
                            to_string(call.options.mean), plan.algorithm->name,
                            algorithms_without_reselection()));
  }
}

void check_wire(const Plan& plan) {
  if (plan.algorithm->selects() && plan.algorithm->reselects && plan.codec->codec.ties()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("wire '{}' makes many values of a list equal, among which '{}' would "
                    "select by index alone; algorithms that do not re-select: {}",
                    plan.codec->name, plan.algorithm->name, algorithms_without_reselection()));
  }
}

/// k of one rank's selection, whether given as k or as a density.
std::uint64_t entries_wanted(const SparseCall& call, const Plan& plan) {
  const SparseOptions& options = call.options;
  if (!plan.algorithm->takes_k()) {
    return call.d;
  }
  const bool per_block = plan.selects_per_block();
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
  if (options.k != 0) {
    return std::min(options.k, call.d);
  }
  if (options.density == 0 && !per_block) {
    if (call.d == 0) {
      return 0;
    }
    throw Error(ErrorKind::kInvalidArgument,
                "sparse_all_reduce needs k >= 1 or a density in (0, 1], seen neither");
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
  if (options.algorithm == kAuto) {
    throw Error(ErrorKind::kInvalidArgument,
                "algorithm 'auto' is chosen when a call runs, and nothing is known of it before: "
                "name an algorithm, such as the one that plan() chooses");
  }
  Plan plan;
  plan.algorithm = &algorithm_registry().find(options.algorithm);
  plan.selector = &selector_registry().find(options.selector);
  plan.codec = &codec_registry().find(options.wire);
  if (!plan.satisfies(options.semantics)) {
    const bool coded = plan.coder() != nullptr;
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("semantics '{}' rules out algorithm '{}'{}, which keeps '{}'",
                            to_string(options.semantics), plan.algorithm->name,
                            coded ? fmt::format(" on wire '{}'", plan.codec->name) : "",
                            to_string(plan.algorithm->keeps)));
  }
  plan.lists.type = call.entry_type();
  plan.lists.d = call.d;
  check_wire(plan);
  check_mean(call, plan);
  plan.lists.k = entries_wanted(call, plan);
  plan.lists.leaf =
      plan.algorithm->selects() ? plan.selector->most_of(call.d, plan.lists.k) : plan.lists.k;
  plan.lists.reselects = plan.algorithm->reselects;
  plan.lists.counted = options.mean == MeanOver::kContributors;
  if (plan.selects_per_block()) {
    plan.lists.blocks = Blocks(call.d, options.density, options.block);
  }
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
  if (call.options.mean != MeanOver::kRanks) {
    agreement.word("mean", to_string(call.options.mean));
  }
  if (plan.algorithm->draws) {
    call.options.seed ? agreement.number("seed", *call.options.seed)
                      : agreement.word("seed", "the call's number");
  }
  if (plan.selects_per_block()) {
    agreement.number("block", call.options.block);
  }
  if (call.options.scale != 1) {
    const double scale = call.options.scale;
    const auto whole = static_cast<std::uint64_t>(std::min(scale, 0x1p63));
    static_cast<double>(whole) == scale
        ? agreement.number("scale", whole)
        : agreement.number("bits of the scale", std::bit_cast<std::uint64_t>(scale));
  }
  if (call.options.gate) {
    agreement.number("gate", call.options.gate->arrivals());
  }
  return agreement;
}

std::function<void(const GroupShape&)> check_of_room(const Plan& plan, const Delivered& delivered) {
  return [plan, delivered](const GroupShape& group) {
    const std::uint64_t largest = plan.most_entries(group.size);
    if (delivered.values != nullptr && delivered.room < largest) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("sparse_all_reduce({}) among {} ranks delivers up to {} entries, "
                              "but there is room to record only {}",
                              plan.algorithm->name, group.size, largest, delivered.room));
    }
  };
}

}  // namespace gtopk::sparse

namespace gtopk {

std::string_view to_string(MeanOver mean) {
  switch (mean) {
    case MeanOver::kRanks:
      return "ranks";
    case MeanOver::kContributors:
      return "contributors";
  }
  return "unknown";
}

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
    case Semantics::kDense:
      return "dense";
    case Semantics::kExactSum:
      return "exact_sum";
    case Semantics::kGtopk:
      return "gtopk";
    case Semantics::kAny:
      return "any";
  }
  return "unknown";
}

CallTraits traits_of(const SparseOptions& options) {
  sparse::SparseCall call;
  call.d = 1;
  call.options = options;
  const sparse::Plan plan = sparse::plan(call);
  const sparse::AlgorithmRow& algorithm = *plan.algorithm;
  return {.selects = algorithm.selects(),
          .delivers_all = !algorithm.takes_k(),
          .delivers_selections = algorithm.counts() && !algorithm.bounded,
          .whole_sums = algorithm.counts(),
          .empties_residual = !algorithm.takes_k() && plan.coder() == nullptr,
          .adds_elements = algorithm.adds_elements,
          .rounds = plan.codec->codec.rounds(),
          .per_block = plan.selector->per_block};
}

std::uint64_t most_delivered(std::uint64_t d, const SparseOptions& options, std::uint32_t ranks) {
  sparse::SparseCall call;
  call.d = d;
  call.options = options;
  return sparse::plan(call).most_entries(ranks);
}

}  // namespace gtopk
