// Sparse, algorithms: how a result that every rank knows reaches the caller: recorded in
// addition to the tensor and, if no rank has sent its own selection, committed the same way on all.
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
/// over contributors: 1, as each sum has already been divided.
template <class Value>
[[nodiscard]] Value divisor_of(const SparseOptions& options, std::uint32_t ranks) {
  if (options.mean == MeanOver::kContributors) {
    return 1;
  }
  return static_cast<Value>((options.op == ReduceOp::kAvg ? ranks : 1) / options.scale);
}

/// Memory for the output of divide_by_counts(); the result itself if that does nothing.
[[nodiscard]] List means_buffer(engine::GroupView& group, const SparseCall& call,
                                const List& result);

/// For a mean over contributors: divides each sum by the number of ranks that sent its index, and
/// by the inverse of the scale.
void divide_by_counts(const SparseCall& call, const List& result, const List& means);

/// Whether every value of the result, divided and rounded, is finite.
[[nodiscard]] bool finite(const SparseCall& call, std::uint32_t ranks, const List& result);

/// Tells the device what to commit; the entries are in its `delivered` already.
void leave_to_device(const AccOnDevice& device, std::uint64_t entries, bool happened);

/// Commits what find() finds on the executor: indices at which every rank has sent acc, and the
/// sums. Residuals are cleared there. The result is NaN, and no residual changes, unless every
/// value, divided and rounded, is finite. On a device the entries must be in result_buffer(). find:
/// as in settle().
engine::Task<void> deliver_alike(engine::GroupView& group, const SparseCall& call,
                                 std::function<List()> find);

/// Memory for `count` entries of the algorithms that make no lists.
[[nodiscard]] List entries_buffer(engine::GroupView& group, const SparseCall& call,
                                  std::size_t count);

/// The same for the entries that are delivered.
[[nodiscard]] List result_buffer(engine::GroupView& group, const SparseCall& call,
                                 std::size_t count);

/// Memory for `count` values that are summed over the ranks: all of acc, or others.
[[nodiscard]] void* sums_buffer(engine::GroupView& group, const SparseCall& call,
                                std::size_t count);

/// The first of `count` sums in the selection order, as many as fit.
[[nodiscard]] List largest_of(EntryType type, const void* sums, std::size_t count, List largest);

/// A list of `count` entries at these addresses.
[[nodiscard]] List list_at(const DetachedEntries& entries, std::size_t count);

}  // namespace gtopk::sparse
