// Sparse, device room: two sorted lists become one, by merge path (Odeh et al., 2012): equal shares
// of both lists' entries go to the threads, each of which finds by bisection where its share
// begins. Then the first k of the sum are found as in a selection.
#pragma once

#include <cstdint>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/refine.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/gtopk/device/select.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"

namespace gtopk::sparse::device {

/// How many entries of each list lie before a place on the path.
struct OnPath {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

/// The place that `diagonal` entries of both lists together lie before; one less where it would
/// part the two entries of one index, which then both lie behind it.
template <class Value, class Index>
[[nodiscard]] GTOPK_HOST_DEVICE OnPath on_path(const Entries<Value, Index>& a,
                                               const Entries<Value, Index>& b,
                                               std::uint64_t diagonal) {
  std::uint64_t low = diagonal > b.size ? diagonal - b.size : 0;
  std::uint64_t high = least<std::uint64_t>(diagonal, a.size);
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (a.indices[middle] < b.indices[diagonal - middle - 1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  OnPath place{low, diagonal - low};
  if (place.a < a.size && place.b > 0 && a.indices[place.a] == b.indices[place.b - 1]) {
    --place.b;
  }
  return place;
}

/// Calls visit(index, sum) for each index between two places, ascending. An entry without a partner
/// gets a zero added: -0 becomes +0 wherever it stands.
template <class Value, class Index, class Visit>
GTOPK_HOST_DEVICE void zip(const Entries<Value, Index>& a, const Entries<Value, Index>& b,
                           OnPath from, OnPath to, Visit visit) {
  while (from.a < to.a || from.b < to.b) {
    const bool has_a = from.a < to.a && (from.b == to.b || a.indices[from.a] <= b.indices[from.b]);
    const bool has_b = from.b < to.b && (from.a == to.a || b.indices[from.b] <= a.indices[from.a]);
    const Index index = has_a ? a.indices[from.a] : b.indices[from.b];
    const Value value_a = has_a ? a.values[from.a] : Value{0};
    const Value value_b = has_b ? b.values[from.b] : Value{0};
    visit(index, value_a + value_b);
    from.a += has_a ? 1 : 0;
    from.b += has_b ? 1 : 0;
  }
}

/// The sum of two lists; in the device's memory.
template <class Value, class Index>
struct Union {
  EntriesOut<Value, Index> entries;  ///< room for |a| + |b|
  std::uint64_t* before = nullptr;   ///< entries before each tile of the path; the last one: all
  std::uint64_t tiles = 0;
};

/// Counts what a tile of the path adds up to, and writes it once it is known where. Nothing of
/// lists that are not sound (lists.hpp): with them it might not end.
template <class Value, class Index, bool Writes>
struct WalkPath {
  static constexpr unsigned kShare = kTile / kThreads;
  struct Shared {
    std::uint32_t sums[kThreads];
    std::uint32_t spare[kThreads];
  };

  Entries<Value, Index> a;
  Entries<Value, Index> b;
  Union<Value, Index> sum;
  const std::uint64_t* sound = nullptr;  ///< null: they are

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const bool walks = sound == nullptr || *sound != 0;
    if (Writes && !walks) {
      return;
    }
    for (std::uint64_t tile = block.number(); tile < sum.tiles; tile += block.count()) {
      block.each([&](unsigned thread) {
        std::uint32_t count = 0;
        if (walks) {
          zip(a, b, place(tile, thread), place(tile, thread + 1), [&](Index, Value) { ++count; });
        }
        shared.sums[thread] = count;
      });
      const std::uint32_t all = sums_before<kThreads>(block, shared.sums, shared.spare);
      block.each([&](unsigned thread) {
        if constexpr (Writes) {
          std::uint64_t at = sum.before[tile] + shared.sums[thread];
          zip(a, b, place(tile, thread), place(tile, thread + 1), [&](Index index, Value value) {
            sum.entries.indices[at] = index;
            sum.entries.values[at] = value;
            ++at;
          });
        } else if (thread == 0) {
          sum.before[tile] = all;
        }
      });
    }
  }

 private:
  [[nodiscard]] GTOPK_HOST_DEVICE OnPath place(std::uint64_t tile, unsigned share) const {
    const std::uint64_t diagonal = tile * kTile + std::uint64_t{share} * kShare;
    return on_path(a, b, least<std::uint64_t>(diagonal, a.size + b.size));
  }
};

/// Adds up what the tiles have counted. One block.
struct AddPath {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
  };

  std::uint64_t* before;
  std::uint64_t tiles;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    sum_up(block, shared, before, tiles);
  }
};

template <class Value, class Index>
struct UnionSource {
  Entries<Value, Index> sum;   // of any size
  const std::uint64_t* count;  // its size

  struct View {
    const Value* values;
    const Index* indices;
    unsigned size;

    [[nodiscard]] GTOPK_HOST_DEVICE Value value(unsigned i) const { return values[i]; }
    [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t index(unsigned i) const { return indices[i]; }
  };

  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t tiles() const { return tiles_of(*count); }
  [[nodiscard]] GTOPK_HOST_DEVICE View open(std::uint64_t tile) const {
    const std::uint64_t first = tile * kTile;
    return {sum.values + first, sum.indices + first,
            static_cast<unsigned>(least<std::uint64_t>(kTile, *count - first))};
  }
};

/// What a merge works in; in the device's memory.
template <class Value, class Index>
struct MergeRoom {
  Cutoff<Value>* cutoff = nullptr;
  std::uint64_t* bins = nullptr;
  TileCounts counts;
  Union<Value, Index> sum;

  static MergeRoom in(Room& memory, std::uint64_t entries) {
    MergeRoom room;
    const std::uint64_t tiles = tiles_of(entries);
    room.cutoff = memory.take<Cutoff<Value>>(1);
    room.bins = memory.take<std::uint64_t>(kBins);
    room.counts.larger = memory.take<std::uint64_t>(tiles + 1);
    room.counts.equal = memory.take<std::uint64_t>(tiles + 1);
    room.counts.any = memory.take<std::uint64_t>(tiles + 1);
    room.sum.entries.values = memory.take<Value>(entries);
    room.sum.entries.indices = memory.take<Index>(entries);
    room.sum.before = memory.take<std::uint64_t>(tiles + 1);
    room.sum.tiles = tiles;
    return room;
  }
};

/// All launches of a merge; what sparse::merge() does (merge/merge.hpp), whose outputs these are.
/// `sound`: null, or what an earlier launch has found of the lists (lists.hpp); if that is 0
/// nothing is kept.
template <class Value, class Index, class Executor>
void merge(Executor& executor, const Entries<Value, Index>& a, const Entries<Value, Index>& b,
           std::uint64_t k, const MergeRoom<Value, Index>& room, EntriesOut<Value, Index> kept,
           EntriesOut<Value, Index> dropped, Report* report, const std::uint64_t* sound = nullptr) {
  executor.launch(executor.wide(), WalkPath<Value, Index, false>{a, b, room.sum, sound});
  executor.launch(1, AddPath{room.sum.before, room.sum.tiles});
  executor.launch(executor.wide(), WalkPath<Value, Index, true>{a, b, room.sum, sound});
  executor.launch(1, BeginSelection<Value>{room.cutoff, room.bins, nullptr, k});
  executor.launch(1, ChooseRoute<Value>{room.cutoff, 0});
  const Entries<Value, Index> sum{room.sum.entries.indices, room.sum.entries.values, 0};
  refine(executor, UnionSource<Value, Index>{sum, room.sum.before + room.sum.tiles}, room.cutoff,
         room.bins, room.counts, report, nullptr, kept, dropped);
}

/// Whether a sum is finite, and how long it is.
template <class Value>
struct ReportUnion {
  struct Shared {};

  const Value* values;
  const std::uint64_t* count;
  Report* report;  // `finite` is 1 beforehand

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    const std::uint64_t size = *count;
    const std::uint64_t all_threads = block.count() * kThreads;
    block.each([&](unsigned thread) {
      const std::uint64_t first = block.number() * kThreads + thread;
      if (first == 0) {
        report->kept = size;
      }
      for (std::uint64_t i = first; i < size; i += all_threads) {
        if (!is_finite_key<Value>(magnitude_key(values[i]))) {
          report->finite = 0;
        }
      }
    });
  }
};

/// All launches of a sum with nothing selected; what sparse::unite() does (merge/merge.hpp), but
/// that report->kept is the size of one that is not finite, too. `sound`: as of merge().
template <class Value, class Index, class Executor>
void unite(Executor& executor, const Entries<Value, Index>& a, const Entries<Value, Index>& b,
           const Union<Value, Index>& sum, Report* report, const std::uint64_t* sound = nullptr) {
  executor.launch(executor.wide(), WalkPath<Value, Index, false>{a, b, sum, sound});
  executor.launch(1, AddPath{sum.before, sum.tiles});
  executor.launch(executor.wide(), WalkPath<Value, Index, true>{a, b, sum, sound});
  executor.launch(executor.wide(),
                  ReportUnion<Value>{sum.entries.values, sum.before + sum.tiles, report});
}

}  // namespace gtopk::sparse::device
