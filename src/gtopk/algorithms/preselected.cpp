// Sparse, algorithms room: `exchange`: only the exchange, of entries that the caller selected.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/call_plan.hpp"
#include "src/gtopk/algorithms/exchange_phase.hpp"

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

/// The errors that do not depend on a group.
Plan plan_preselected(const SparseCall& call, const Preselected& entries) {
  if (call.options.algorithm == kAuto) {
    throw Error(ErrorKind::kInvalidArgument, "exchange takes the name of an algorithm, not 'auto'");
  }
  const Plan plan = sparse::plan(call);
  if (!plan.algorithm->selects()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("exchange takes lists of entries, but algorithm '{}' selects none",
                            plan.algorithm->name));
  }
  if (plan.lists.counted) {
    throw Error(ErrorKind::kInvalidArgument,
                "exchange delivers sums, and takes no mean over contributors");
  }
  if (plan.lists.type.index_bytes != sizeof(std::uint32_t)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("exchange takes 32-bit indices, but d = {} needs more", call.d));
  }
  if (entries.indices.size() > plan.lists.k || entries.values.size() != entries.indices.size()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format(
            "exchange({}) takes at most k = {} indices and as many values: given {} indices "
            "and {} values",
            plan.algorithm->name, plan.lists.k, entries.indices.size(), entries.values.size()));
  }
  check_entries(plan.algorithm->name, call.d, entries);
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
  if (!result.finite) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("exchange({}): a sum over the ranks is not finite", plan.algorithm->name));
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
