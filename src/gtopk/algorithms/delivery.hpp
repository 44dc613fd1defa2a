// Sparse, algorithms: how a result that every rank knows reaches the caller. It is recorded in
// addition to the tensor and, if no rank has sent its own selection, committed in the same way on
// all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/value/list.hpp"

namespace gtopk::sparse {

/// Records the result in addition to the tensor, if the caller wants that.
void note(const Delivered& delivered, EntryType type, const List& result);

/// The divisor of sums: the number of ranks for a mean, and the inverse of the scale. For a mean
/// over contributors it is 1, because each sum has already been divided.
template <class Value>
[[nodiscard]] Value divisor_of(const SparseOptions& options, std::uint32_t ranks) {
  if (options.mean == MeanOver::kContributors) {
    return 1;
  }
  return static_cast<Value>((options.op == ReduceOp::kAvg ? ranks : 1) / options.scale);
}

/// Returns memory for the output of divide_by_counts(), or the result itself if that does nothing.
[[nodiscard]] List means_buffer(engine::GroupView& group, const SparseCall& call,
                                const List& result);

/// For a mean over contributors: divides each sum by the number of ranks that sent its index, and
/// by the inverse of the scale.
void divide_by_counts(const SparseCall& call, const List& result, const List& means);

/// Whether every value of the result, divided and rounded, is finite.
[[nodiscard]] bool finite(const SparseCall& call, std::uint32_t ranks, const List& result);

/// Tells the device what to commit; the entries are already in its `delivered`.
void leave_to_device(const AccOnDevice& device, std::uint64_t entries, bool happened);

/// Commits the entries that find() finds on the executor: indices at which every rank has sent acc,
/// with their sums. Residuals are cleared at these indices. The result is NaN, and no residual
/// changes, unless every value, divided and rounded, is finite. On a device the entries must be in
/// result_buffer(). `find` is as in settle().
engine::Task<void> deliver_alike(engine::GroupView& group, const SparseCall& call,
                                 std::function<List()> find);

/// Returns memory for `count` entries of algorithms that make no lists.
[[nodiscard]] List entries_buffer(engine::GroupView& group, const SparseCall& call,
                                  std::size_t count);

/// Returns memory for the entries that are delivered.
[[nodiscard]] List result_buffer(engine::GroupView& group, const SparseCall& call,
                                 std::size_t count);

/// Returns memory for `count` values that are summed over the ranks: all of acc, or other values.
[[nodiscard]] void* sums_buffer(engine::GroupView& group, const SparseCall& call,
                                std::size_t count);

/// Finds the first of `count` sums in the selection order, as many as fit in `largest`.
[[nodiscard]] List largest_of(EntryType type, const void* sums, std::size_t count, List largest);

/// Makes a list of `count` entries at these addresses.
[[nodiscard]] List list_at(const DetachedEntries& entries, std::size_t count);

}  // namespace gtopk::sparse
