// Sparse, algorithms: `exchange`, which runs only the exchange of entries that the caller selected.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/exchange_phase.hpp"
#include "src/gtopk/algorithms/resolved_call.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

void check_entries(std::string_view algorithm, std::uint64_t d, const Preselected& entries) {
  for (std::size_t i = 0; i < entries.indices.size(); ++i) {
    const std::uint32_t index = entries.indices[i];
    const bool ascends = i == 0 || entries.indices[i - 1] < index;
    if (ascends && index < d && std::isfinite(entries.values[i])) {
      continue;
    }
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange({}) takes ascending indices below d = {} and finite values; "
                    "seen: entry {} is {} at index {}{}",
                    algorithm, d, i, entries.values[i], index,
                    ascends ? "" : fmt::format(", after index {}", entries.indices[i - 1])));
  }
}

/// Resolves the call, and throws the errors that do not depend on a group.
ResolvedCall resolve_preselected(const SparseCall& call, const Preselected& entries) {
  if (call.options.algorithm == kAuto) {
    throw Error(ErrorKind::kInvalidArgument, "exchange takes the name of an algorithm, not 'auto'");
  }
  const ResolvedCall resolved = sparse::resolve(call);
  if (!resolved.algorithm->selects()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("exchange takes lists of entries, but algorithm '{}' selects none",
                            resolved.algorithm->name));
  }
  if (resolved.lists.counted) {
    throw Error(ErrorKind::kInvalidArgument,
                "exchange delivers sums, and takes no mean over contributors");
  }
  if (resolved.lists.type.index_bytes != sizeof(std::uint32_t)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("exchange takes 32-bit indices, but d = {} needs more", call.d));
  }
  if (entries.indices.size() > resolved.lists.k ||
      entries.values.size() != entries.indices.size()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format(
            "exchange({}) takes at most k = {} indices and as many values: given {} indices "
            "and {} values",
            resolved.algorithm->name, resolved.lists.k, entries.indices.size(),
            entries.values.size()));
  }
  check_entries(resolved.algorithm->name, call.d, entries);
  return resolved;
}

void check_capacity(const ResolvedCall& resolved, const Preselected& entries, std::uint32_t ranks) {
  const std::uint64_t largest = resolved.most_entries(ranks);
  if (entries.result_indices.size() < largest || entries.result_values.size() < largest) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange({}) of k = {} among {} ranks has up to {} entries; results have room "
                    "for {} indices and {} values",
                    resolved.algorithm->name, resolved.lists.k, ranks, largest,
                    entries.result_indices.size(), entries.result_values.size()));
  }
}

Task<void> exchange_preselected(GroupView& group, Preselected entries, ResolvedCall resolved) {
  ExchangePhase exchange(group, resolved, nullptr);
  group.enter("exchange");
  List own = exchange.lists().make(resolved.lists.k);
  const auto output = own.output<float, std::uint32_t>();
  std::ranges::copy(entries.indices, output.indices);
  std::ranges::copy(entries.values, output.values);
  exchange.lists().close_selection(own, entries.indices.size(), true);
  Task<List> exchanging = exchange.run(own);
  const List result = co_await exchanging;
  if (!result.finite) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange({}): a sum over the ranks is not finite", resolved.algorithm->name));
  }
  const auto delivered = result.entries<float, std::uint32_t>();
  std::copy_n(delivered.indices, delivered.size, entries.result_indices.begin());
  std::copy_n(delivered.values, delivered.size, entries.result_values.begin());
  *entries.result_count = delivered.size;
}

}  // namespace
}  // namespace gtopk::sparse

namespace gtopk {

Collective exchange(const Preselected& entries, std::uint64_t d, const SparseOptions& options) {
  sparse::SparseCall call;
  call.d = d;
  call.options = options;
  const sparse::ResolvedCall resolved = sparse::resolve_preselected(call, entries);
  Collective collective;
  collective.name = fmt::format("exchange({})", resolved.algorithm->name);
  collective.agreement = sparse::agreement(call, resolved);
  collective.check = [resolved, entries](const GroupShape& group) {
    sparse::check_capacity(resolved, entries, group.size);
  };
  collective.body = [resolved, entries](engine::GroupView& group) {
    return sparse::exchange_preselected(group, entries, resolved);
  };
  return collective;
}

}  // namespace gtopk
