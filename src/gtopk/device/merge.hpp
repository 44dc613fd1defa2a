// Sparse, device room: two sorted lists become one, by merge path (Odeh et al., 2012): equal shares
// of both lists' entries go to blocks of threads, and of these to threads. A block searches both
// lists for where its share begins; then it reads the share, in which each thread bisects. Then the
// first k of the sum are found as in a selection.
#pragma once

#include <cstdint>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/lists.hpp"
#include "src/gtopk/device/refine.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"

namespace gtopk::sparse::device {

/// How many entries of each list lie before a place on the path.
struct OnPath {
  std::uint64_t a;
  std::uint64_t b;
};

/// `place`, or one less where it would part the two entries of one index, which then both lie
/// behind it.
template <class Value, class Index>
[[nodiscard]] GTOPK_HOST_DEVICE OnPath not_parting(const Entries<Value, Index>& a,
                                                   const Entries<Value, Index>& b, OnPath place) {
  if (place.a < a.size && place.b > 0 && a.indices[place.a] == b.indices[place.b - 1]) {
    --place.b;
  }
  return place;
}

/// The place that `diagonal` entries of both lists together lie before; see not_parting().
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
  return not_parting(a, b, {low, diagonal - low});
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

/// Entries of both lists that a block handles at a time. Few, so that every multiprocessor has
/// some: a merge mostly waits for memory.
inline constexpr unsigned kPathTile = 1024;

/// on_path() of two diagonals by a block, half of its threads each: in each round these look at as
/// many places, evenly spread over what is left.
struct FindPlaces {
  static constexpr unsigned kProbes = kThreads / 2;

  struct Shared {
    struct Range {
      std::uint64_t low;
      std::uint64_t high;
    };
    Range ranges[2][2];              ///< of each diagonal, by rounds in turn
    std::uint32_t before[kThreads];  ///< whether a thread's place is before the one sought
    OnPath places[2];
  };

  /// Leaves both in shared.places.
  template <class Block, class Value, class Index>
  GTOPK_HOST_DEVICE static void run(Block& block, Shared& shared, const Entries<Value, Index>& a,
                                    const Entries<Value, Index>& b, std::uint64_t first,
                                    std::uint64_t second) {
    const auto diagonal = [=](unsigned half) { return half == 0 ? first : second; };
    block.each([&](unsigned thread) {
      if (thread < 2) {
        const std::uint64_t here = diagonal(thread);
        shared.ranges[0][thread] = {here > b.size ? here - b.size : 0,
                                    least<std::uint64_t>(here, a.size)};
      }
    });
    unsigned round = 0;
    // A range of n becomes one of at most tiles_of<kProbes>(n) - 1.
    for (std::uint64_t most = least<std::uint64_t>(second, a.size); most > 0; ++round) {
      const auto& ranges = shared.ranges[round % 2];
      block.each([&](unsigned thread) {
        const auto range = ranges[thread / kProbes];
        const std::uint64_t at = probe(range, thread % kProbes);
        shared.before[thread] =
            at < range.high && a.indices[at] < b.indices[diagonal(thread / kProbes) - at - 1] ? 1
                                                                                              : 0;
      });
      block.each([&](unsigned thread) {
        const unsigned half = thread / kProbes;
        const unsigned number = thread % kProbes;
        const auto range = ranges[half];
        auto& next = shared.ranges[(round + 1) % 2][half];
        const std::uint64_t at = probe(range, number);
        if (number == 0 && shared.before[thread] == 0) {
          next = {range.low, range.low};
        } else if (shared.before[thread] != 0 &&
                   (number + 1 == kProbes || shared.before[thread + 1] == 0)) {
          next = {at + 1, least(probe(range, number + 1), range.high)};
        }
      });
      most = tiles_of<kProbes>(most) - 1;
    }
    block.each([&](unsigned thread) {
      if (thread < 2) {
        const std::uint64_t low = shared.ranges[round % 2][thread].low;
        shared.places[thread] = not_parting(a, b, {low, diagonal(thread) - low});
      }
    });
  }

 private:
  /// Which entry of `a` one of the threads looks at; none from range.high on.
  GTOPK_HOST_DEVICE static std::uint64_t probe(const Shared::Range& range, std::uint64_t number) {
    return range.low + tiles_of<kProbes>(range.high - range.low) * number;
  }
};

/// The sum of two lists; in the device's memory.
template <class Value, class Index>
struct Union {
  EntriesOut<Value, Index> entries;  ///< room for |a| + |b|
  std::uint64_t tiles = 0;           ///< of the path
  OnPath* places = nullptr;          ///< where each begins; the last one: the end
  std::uint64_t* before = nullptr;   ///< entries before each; the last one: all

  static Union in(Room& memory, std::uint64_t entries) {
    Union sum;
    sum.tiles = tiles_of<kPathTile>(entries);
    sum.entries.values = memory.take<Value>(entries);
    sum.entries.indices = memory.take<Index>(entries);
    sum.places = memory.take<OnPath>(sum.tiles + 1);
    sum.before = memory.take<std::uint64_t>(sum.tiles + 1);
    return sum;
  }
};

/// Counts what a tile of the path adds up to, and writes it once it is known where. Nothing of
/// lists that are not sound: with them it might not end.
template <class Value, class Index, bool Writes>
struct WalkPath {
  static constexpr unsigned kShare = kPathTile / kThreads;
  static constexpr unsigned kMost = kPathTile + 1;  // of a tile (not_parting)
  struct Place {
    std::uint16_t a;
    std::uint16_t b;
  };
  struct Shared {
    FindPlaces::Shared search;
    Index indices[kMost];
    Value values[Writes ? kMost : 1];
    Place starts[kThreads + 1];  ///< of the threads' shares, in what the block has read
    std::uint32_t sums[kThreads];
    std::uint32_t spare[kThreads];
  };

  Entries<Value, Index> a;
  Entries<Value, Index> b;
  Union<Value, Index> sum;
  const std::uint64_t* sound;  ///< null: they are
  Report* report;              ///< if it writes; null: nobody asks whether sums are finite

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (sound != nullptr && *sound == 0) {
      if constexpr (!Writes) {
        each_of(block, sum.tiles, [&](std::uint64_t tile) { sum.before[tile] = 0; });
      }
      return;
    }
    for (std::uint64_t tile = block.number(); tile < sum.tiles; tile += block.count()) {
      if constexpr (Writes) {
        walk(block, shared, tile, sum.places[tile], sum.places[tile + 1]);
      } else {
        const std::uint64_t first = tile * kPathTile;
        FindPlaces::run(block, shared.search, a, b, first,
                        least<std::uint64_t>(first + kPathTile, a.size + b.size));
        const OnPath from = block.read(shared.search.places[0]);
        const OnPath to = block.read(shared.search.places[1]);
        block.each([&](unsigned thread) {
          if (thread == 0) {
            sum.places[tile] = from;
          }
          if (thread == 1 && tile + 1 == sum.tiles) {
            sum.places[tile + 1] = to;
          }
        });
        walk(block, shared, tile, from, to);
      }
    }
  }

 private:
  template <class Block>
  GTOPK_HOST_DEVICE void walk(Block& block, Shared& shared, std::uint64_t tile, OnPath from,
                              OnPath to) const {
    const auto of_a = static_cast<unsigned>(to.a - from.a);
    const auto of_b = static_cast<unsigned>(to.b - from.b);
    block.each([&](unsigned thread) {
      read(thread, shared, 0, a, from.a, of_a);
      read(thread, shared, of_a, b, from.b, of_b);
    });
    const Entries<Value, Index> here_a{shared.indices, shared.values, of_a};
    const Entries<Value, Index> here_b{shared.indices + of_a, shared.values + of_a, of_b};
    block.each([&](unsigned thread) {
      const OnPath start = on_path(here_a, here_b, least(thread * kShare, of_a + of_b));
      shared.starts[thread] = {static_cast<std::uint16_t>(start.a),
                               static_cast<std::uint16_t>(start.b)};
      if (thread == 0) {
        shared.starts[kThreads] = {static_cast<std::uint16_t>(of_a),
                                   static_cast<std::uint16_t>(of_b)};
      }
    });
    const auto zip_share = [&](unsigned thread, auto visit) {
      const Place start = shared.starts[thread];
      const Place end = shared.starts[thread + 1];
      zip(here_a, here_b, {start.a, start.b}, {end.a, end.b}, visit);
    };
    block.each([&](unsigned thread) {
      std::uint32_t count = 0;
      zip_share(thread, [&](Index, Value) { ++count; });
      shared.sums[thread] = count;
    });
    const std::uint32_t all = sums_before<kThreads>(block, shared.sums, shared.spare);
    block.each([&](unsigned thread) {
      if constexpr (Writes) {
        std::uint64_t at = sum.before[tile] + shared.sums[thread];
        zip_share(thread, [&](Index index, Value value) {
          sum.entries.indices[at] = index;
          sum.entries.values[at] = value;
          ++at;
          if (report != nullptr && !is_finite_key<Value>(magnitude_key(value))) {
            report->finite = 0;
          }
        });
      } else if (thread == 0) {
        sum.before[tile] = all;
      }
    });
  }

  /// Part of a list into shared memory.
  GTOPK_HOST_DEVICE static void read(unsigned thread, Shared& shared, unsigned to,
                                     const Entries<Value, Index>& from, std::uint64_t begin,
                                     unsigned size) {
    for (unsigned i = thread; i < size; i += kThreads) {
      shared.indices[to + i] = from.indices[begin + i];
      if constexpr (Writes) {
        shared.values[to + i] = from.values[begin + i];
      }
    }
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
  Report* report;  ///< null: nobody asks how long the sum is

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t all = sum_up(block, shared, before, tiles);
    block.each([&](unsigned thread) {
      if (thread == 0 && report != nullptr) {
        report->kept = all;
      }
    });
  }
};

/// What a merge works in; in the device's memory.
template <class Value, class Index>
struct MergeRoom {
  RefineRoom<Value> refine;
  Union<Value, Index> sum;

  static MergeRoom in(Room& memory, std::uint64_t entries) {
    return {RefineRoom<Value>::in(memory, tiles_of<kListTile>(entries)),
            Union<Value, Index>::in(memory, entries)};
  }
};

/// Whether a list that was received may be used.
struct Soundness {
  std::uint64_t* flag = nullptr;  ///< null: it may; set to 0 if it may not, perhaps already
  std::uint64_t d = 0;            ///< 0: it has been checked; else its indices have to be below
};

/// The launches that leave the sum of both lists in the room.
template <class Value, class Index, class Executor>
void add_lists(Executor& executor, const Entries<Value, Index>& a, const Entries<Value, Index>& b,
               std::uint64_t k, const MergeRoom<Value, Index>& room, const Soundness& sound,
               Report* report) {
  const BeginSearch<Value> begin{room.refine.key, search_of<Value>(k)};
  if (sound.flag != nullptr && sound.d != 0) {
    executor.launch(blocks_for(executor, tiles_of<kThreads>(b.size)),
                    WithOne{CheckIndices<Index>{b.indices, b.size, sound.d, sound.flag}, begin});
  } else {
    executor.launch(1, begin);
  }
  const std::uint64_t tiles = room.sum.tiles;
  launch_with_last(executor, tiles,
                   WalkPath<Value, Index, false>{a, b, room.sum, sound.flag, nullptr},
                   AddPath{room.sum.before, tiles, report}, room.refine.key.ended);
  executor.launch(blocks_for(executor, tiles),
                  WalkPath<Value, Index, true>{a, b, room.sum, sound.flag, report});
}

/// All launches of a merge; what sparse::merge() does (merge/merge.hpp), whose outputs these are.
/// `sound`: of list b; nothing is kept if it is not.
template <class Value, class Index, class Executor>
void merge(Executor& executor, const Entries<Value, Index>& a, const Entries<Value, Index>& b,
           std::uint64_t k, const MergeRoom<Value, Index>& room, EntriesOut<Value, Index> kept,
           EntriesOut<Value, Index> dropped, Report* report, const Soundness& sound = {}) {
  add_lists<Value, Index>(executor, a, b, k, room, sound, nullptr);
  const ListSource<Value, Index> sum{room.sum.entries, room.sum.before + room.sum.tiles,
                                     a.size + b.size};
  refine(executor, sum, room.refine, report, kept, dropped);
}

/// All launches of a sum with nothing selected, left in the room; what sparse::unite() does
/// (merge/merge.hpp), but that report->kept is the size of one that is not finite, too.
/// report->finite is 1 beforehand; `sound`: as of merge().
template <class Value, class Index, class Executor>
void unite(Executor& executor, const Entries<Value, Index>& a, const Entries<Value, Index>& b,
           const MergeRoom<Value, Index>& room, Report* report, const Soundness& sound = {}) {
  add_lists<Value, Index>(executor, a, b, 0, room, sound, report);
}

}  // namespace gtopk::sparse::device
