// Sparse, algorithms room: how a result that every rank knows reaches the caller: recorded besides
// the tensor, and, if no rank has sent its own selection, committed the same way on all.
#pragma once

#include <algorithm>
#include <cstddef>

#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
void note(const Delivered& delivered, Entries<Value, Index> result) {
  if (delivered.values != nullptr) {
    std::copy_n(result.indices, result.size, delivered.indices);
    std::copy_n(result.values, result.size, static_cast<Value*>(delivered.values));
  }
}

/// What sums are divided by: the number of ranks for a mean, and the inverse of the scale.
template <class Value>
[[nodiscard]] Value divisor_of(const SparseOptions& options, std::uint32_t ranks) {
  return static_cast<Value>((options.op == ReduceOp::kAvg ? ranks : 1) / options.scale);
}

/// Indices that every rank has sent acc at, and the sums; whether nothing that was not finite
/// showed while they were found.
template <class T, class Index>
struct Found {
  Entries<Accumulation<T>, Index> result;
  bool finite = true;
};

template <class T, class Index>
void commit_alike(const SparseCall& call, Entries<Accumulation<T>, Index> result,
                  Accumulation<T> divisor, bool happened) {
  using Value = Accumulation<T>;
  const Segments<T> tensor(call.tensor);
  if (!happened) {
    fill_nan(tensor, call.d);
    return;
  }
  commit<T, Value, Index>(tensor, static_cast<Value*>(call.residual), call.d, result, result,
                          nullptr, 0, call.options.put_back, divisor);
  if (call.options.momentum != nullptr) {
    mask(static_cast<Value*>(call.options.momentum), result, result, call.options.put_back);
  }
}

/// Tells the device what to commit; the entries are in its `delivered` already.
inline void leave_to_device(const AccOnDevice& device, std::uint64_t entries, bool happened) {
  *device.counts = {};
  if (happened) {
    *device.counts = {.happened = 1, .cleared = entries, .returned = 0, .delivered = entries};
  }
}

/// Commits what find(), a Found<T, Index>, finds on the executor: residuals are cleared there. NaN,
/// and no residual changed, unless every value, divided and rounded, is finite. On a device the
/// entries must be in result_room().
template <class T, class Index, class Find>
engine::Task<void> deliver_alike(engine::GroupView& group, const SparseCall& call, Find find) {
  using Value = Accumulation<T>;
  const auto divisor = divisor_of<Value>(call.options, group.size());
  Entries<Value, Index> result;
  engine::Task<void> settling = settle(
      group, call.gate.get(), call.d,
      [&] {
        const Found<T, Index> found = find();
        result = found.result;
        return found.finite &&
               std::all_of(
                   result.values, result.values + result.size,
                   [](Value value) { return is_finite_key<Value>(magnitude_key(value)); }) &&
               representable<T, Value, Index>(result, divisor);
      },
      [&](bool happened) {
        if (call.device) {
          leave_to_device(*call.device, result.size, happened);
        } else {
          commit_alike<T, Index>(call, result, divisor, happened);
        }
        if (happened) {
          note(call.delivered, result);
        }
      });
  co_await settling;
}

/// Room for entries of the algorithms that make no lists.
template <class Value, class Index>
[[nodiscard]] EntriesOut<Value, Index> entries_room(engine::GroupView& group, std::size_t count) {
  return {reinterpret_cast<Index*>(group.buffer(count * sizeof(Index)).data()),
          reinterpret_cast<Value*>(group.buffer(count * sizeof(Value)).data())};
}

/// The same for the entries that are delivered, at most `count`.
template <class Value, class Index>
[[nodiscard]] EntriesOut<Value, Index> result_room(engine::GroupView& group, const SparseCall& call,
                                                   std::size_t count) {
  if (!call.device) {
    return entries_room<Value, Index>(group, count);
  }
  const DetachedEntries& there = call.device->delivered;
  return {static_cast<Index*>(there.indices), static_cast<Value*>(there.values)};
}

/// Room for `count` values that are summed over the ranks, all of acc or others.
template <class Value>
[[nodiscard]] Value* sums_room(engine::GroupView& group, const SparseCall& call,
                               std::size_t count) {
  return call.device ? static_cast<Value*>(call.device->sums)
                     : reinterpret_cast<Value*>(group.buffer(count * sizeof(Value)).data());
}

}  // namespace gtopk::sparse
