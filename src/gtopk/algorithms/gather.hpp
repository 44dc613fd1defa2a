// Sparse, algorithms: one rank's acc, all of it or at indices that all ranks know, so that
// values can be summed without indices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// Returns all of acc, in memory that lives as long as the operation. On a device, acc is ready
/// when the operation starts, unless it must be requested.
engine::Task<void*> accumulate_all(engine::GroupView& group, const SparseCall& call);

/// Writes acc at the list's indices, which ascend, to its values. All are NaN if any element of acc
/// is not finite, whether it was read or not.
void gather(const SparseCall& call, EntryType type, const List& list);

/// Does the same for values that a device has written.
void spoil_unless_finite(const AccOnDevice& there, EntryType type, const List& list);

/// Calls visit(begin, acc, count, finite) for consecutive stretches of acc, none longer than
/// `Stretch`.
template <class T, std::size_t Stretch, class Visit>
void for_each_stretch_of_acc(const SparseCall& call, Visit visit) {
  using Value = Accumulation<T>;
  const auto* const residual = static_cast<const Value*>(call.residual);
  std::array<Value, Stretch> acc;
  SegmentCursor<T> cursor{Segments<T>(call.tensor)};
  for (std::size_t begin = 0, end = 0; begin < call.d; begin = end) {
    cursor.go_to(begin);
    end = std::min({begin + Stretch, cursor.end(), static_cast<std::size_t>(call.d)});
    const bool finite = accumulate<T, Value>(Segments<const T>(cursor.at(begin)),
                                             residual == nullptr ? nullptr : residual + begin,
                                             acc.data(), end - begin);
    visit(begin, acc.data(), end - begin, finite);
  }
}

}  // namespace gtopk::sparse
