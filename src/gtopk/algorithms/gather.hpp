// Sparse, algorithms room: one rank's acc, all of it or at indices that all ranks know, so that
// values can be summed without indices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "src/engine/errand.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// All of acc into `acc`. Of a device it is there when the operation starts, unless it is to be
/// asked for.
template <class T>
engine::Task<void> accumulate_all(engine::GroupView& group, const SparseCall& call,
                                  Accumulation<T>* acc) {
  using Value = Accumulation<T>;
  if (call.device) {
    AccDevice* const device = call.device->device;
    if (device != nullptr) {
      engine::Errand asking(
          group, [&](engine::Errand::Done done) { device->accumulate(acc, std::move(done)); });
      co_await asking;
    }
    co_return;
  }
  engine::Computation accumulating = group.compute(call.d, [&] {
    static_cast<void>(accumulate<T, Value>(Segments<T>(call.tensor),
                                           static_cast<const Value*>(call.residual), acc,
                                           static_cast<std::size_t>(call.d)));
  });
  co_await accumulating;
}

/// Calls visit(begin, acc, count, finite) for stretches of acc, in order, none longer than
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

/// acc at `count` ascending indices; all NaN when any acc is not finite, asked for or not.
template <class T, class Index>
void gather(const SparseCall& call, const Index* indices, std::size_t count,
            Accumulation<T>* values) {
  using Value = Accumulation<T>;
  std::size_t taken = 0;
  bool spoiled = false;
  for_each_stretch_of_acc<T, 4096>(
      call, [&](std::size_t begin, const Value* acc, std::size_t length, bool finite) {
        spoiled |= !finite;
        for (; taken < count && indices[taken] < begin + length; ++taken) {
          values[taken] = acc[indices[taken] - begin];
        }
      });
  if (spoiled) {
    std::fill_n(values, count, std::numeric_limits<Value>::quiet_NaN());
  }
}

/// The same by the device that has acc, of indices and values in pinned memory.
template <class Value, class Index>
engine::Task<void> gather_there(engine::GroupView& group, const AccOnDevice& there,
                                EntriesOut<Value, Index> entries, std::size_t count) {
  *there.finite = 1;
  engine::Errand gathering(group, [&](engine::Errand::Done done) {
    there.device->gather({entries.indices, count, entries.values, there.finite}, std::move(done));
  });
  co_await gathering;
  if (*there.finite == 0) {
    std::fill_n(entries.values, count, std::numeric_limits<Value>::quiet_NaN());
  }
}

}  // namespace gtopk::sparse
