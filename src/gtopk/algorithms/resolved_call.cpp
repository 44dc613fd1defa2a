#include "src/gtopk/algorithms/resolved_call.hpp"

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

/// Checks that the divisor of sums is finite for an average over any number of ranks. Otherwise
/// results would be 0, and the values sent would be lost. A divisor that underflows makes results
/// non-finite.
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

/// Checks that the algorithm delivers whole sums with known contributors.
void check_mean(const SparseCall& call, const ResolvedCall& resolved) {
  if (call.options.mean == MeanOver::kRanks) {
    return;
  }
  if (call.options.op != ReduceOp::kAvg) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a mean over {} needs ReduceOp AVG, seen {}",
                            to_string(call.options.mean), to_string(call.options.op)));
  }
  if (!resolved.algorithm->counts()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a mean over {} needs whole sums of what ranks select, which '{}' does "
                            "not deliver; algorithms that do: {}",
                            to_string(call.options.mean), resolved.algorithm->name,
                            algorithms_without_reselection()));
  }
}

void check_wire(const ResolvedCall& resolved) {
  if (resolved.algorithm->selects() && resolved.algorithm->reselects &&
      resolved.codec->codec.ties()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("wire '{}' makes many values of a list equal, among which '{}' would "
                            "select by index alone; algorithms that do not re-select: {}",
                            resolved.codec->name, resolved.algorithm->name,
                            algorithms_without_reselection()));
  }
}

/// The k of one rank's selection, whether it was given as k or as a density.
std::uint64_t entries_wanted(const SparseCall& call, const ResolvedCall& resolved) {
  const SparseOptions& options = call.options;
  if (!resolved.algorithm->takes_k()) {
    return call.d;
  }
  const bool per_block = resolved.selects_per_block();
  if (per_block && options.block == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("select '{}' needs block >= 1, seen 0", resolved.selector->name));
  }
  if (options.k != 0 && (per_block || options.density != 0)) {
    throw Error(ErrorKind::kInvalidArgument,
                per_block ? fmt::format("select '{}' takes a density and no k, seen k = {}",
                                        resolved.selector->name, options.k)
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

ResolvedCall resolve(const SparseCall& call) {
  check(call);
  const SparseOptions& options = call.options;
  if (options.algorithm == kAuto) {
    throw Error(ErrorKind::kInvalidArgument,
                "algorithm 'auto' is chosen when a call runs, and nothing is known of it before: "
                "name an algorithm, such as the one that plan() chooses");
  }
  ResolvedCall resolved;
  resolved.algorithm = &algorithm_registry().find(options.algorithm);
  resolved.selector = &selector_registry().find(options.selector);
  resolved.codec = &codec_registry().find(options.wire);
  if (!resolved.satisfies(options.semantics)) {
    const bool coded = resolved.coder() != nullptr;
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("semantics '{}' rules out algorithm '{}'{}, which keeps '{}'",
                            to_string(options.semantics), resolved.algorithm->name,
                            coded ? fmt::format(" on wire '{}'", resolved.codec->name) : "",
                            to_string(resolved.algorithm->keeps)));
  }
  resolved.lists.type = call.entry_type();
  resolved.lists.d = call.d;
  check_wire(resolved);
  check_mean(call, resolved);
  resolved.lists.k = entries_wanted(call, resolved);
  resolved.lists.leaf = resolved.algorithm->selects()
                            ? resolved.selector->most_of(call.d, resolved.lists.k)
                            : resolved.lists.k;
  resolved.lists.reselects = resolved.algorithm->reselects;
  resolved.lists.counted = options.mean == MeanOver::kContributors;
  if (resolved.selects_per_block()) {
    resolved.lists.blocks = Blocks(call.d, options.density, options.block);
  }
  resolved.lists.codec = &resolved.codec->codec;
  resolved.lists.forwards = resolved.algorithm->forwards && resolved.codec->codec.rounds();
  return resolved;
}

Agreement agreement(const SparseCall& call, const ResolvedCall& resolved,
                    std::string_view algorithm) {
  Agreement agreement("sparse_all_reduce");
  agreement.word("algorithm", algorithm)
      .number("d", call.d)
      .number("k", resolved.lists.k)
      .type("dtype", call.dtype)
      .word("op", to_string(call.options.op))
      .word("put_back", to_string(call.options.put_back))
      .word("select", resolved.selector->name)
      .word("wire", resolved.codec->name);
  if (call.options.mean != MeanOver::kRanks) {
    agreement.word("mean", to_string(call.options.mean));
  }
  if (resolved.algorithm->draws) {
    call.options.seed ? agreement.number("seed", *call.options.seed)
                      : agreement.word("seed", "the call's number");
  }
  if (resolved.selects_per_block()) {
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

std::function<void(const GroupShape&)> check_of_capacity(const ResolvedCall& resolved,
                                                         const Delivered& delivered) {
  return [resolved, delivered](const GroupShape& group) {
    const std::uint64_t largest = resolved.most_entries(group.size);
    if (delivered.values != nullptr && delivered.capacity < largest) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("sparse_all_reduce({}) among {} ranks delivers up to {} entries, "
                              "but there is room to record only {}",
                              resolved.algorithm->name, group.size, largest, delivered.capacity));
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
  const sparse::ResolvedCall resolved = sparse::resolve(call);
  const sparse::AlgorithmRow& algorithm = *resolved.algorithm;
  return {.selects = algorithm.selects(),
          .delivers_all = !algorithm.takes_k(),
          .delivers_selections = algorithm.counts() && !algorithm.bounded,
          .whole_sums = algorithm.counts(),
          .empties_residual = !algorithm.takes_k() && resolved.coder() == nullptr,
          .adds_elements = algorithm.adds_elements,
          .rounds = resolved.codec->codec.rounds(),
          .per_block = resolved.selector->per_block};
}

std::uint64_t most_delivered(std::uint64_t d, const SparseOptions& options, std::uint32_t ranks) {
  sparse::SparseCall call;
  call.d = d;
  call.options = options;
  return sparse::resolve(call).most_entries(ranks);
}

}  // namespace gtopk
