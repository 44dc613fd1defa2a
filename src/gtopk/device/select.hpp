// Sparse, device room: the exact selection of one rank from acc = gradient + residual.
//
// Where the last selection's k-th key is known, one sweep takes what reaches somewhat less than it;
// if that was enough, the first k are found among these, and acc is read once. Otherwise they are
// found in all of acc. Neither tensor nor residual is written.
#pragma once

#include <cstdint>
#include <limits>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/refine.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

/// What reaches a threshold; in the device's memory.
template <class Value>
struct Candidates {
  std::uint64_t room = 0;
  /// Of each tile in a row, the tiles in any order.
  Value* values = nullptr;
  std::uint16_t* offsets = nullptr;  ///< in their tile
  std::uint64_t* first = nullptr;    ///< of each tile
  RunCounts counts;
  /// All in the order of the index.
  Value* ordered = nullptr;
  std::uint64_t* indices = nullptr;
};

/// What a last k-th key is lowered to, so that somewhat more entries reach it: by an eighth or
/// less. At least 1.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE Key<Value> lowered(Key<Value> key) {
  constexpr Key<Value> kEighth = Key<Value>{1} << (std::numeric_limits<Value>::digits - 1 - 3);
  return key > kEighth ? key - kEighth : 1;
}

/// Begins with the threshold that the selection before has left. One block.
template <class Value>
struct BeginSweep {
  using Shared = typename BeginSearch<Value>::Shared;

  KeyRoom<Value> room;
  const std::uint64_t* last;  // null or 0: not known
  std::uint64_t k;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t before = last == nullptr ? 0 : *last;
    Cutoff<Value> first;
    first.left = k;
    first.reached = before == 0 ? 0 : lowered<Value>(static_cast<Key<Value>>(before));
    BeginSearch<Value>{room, first}(block, shared);
  }
};

/// Reads all of acc, and keeps what reaches the last threshold, as far as there is room.
template <class T>
struct SweepCandidates {
  using Value = Accumulation<T>;
  struct Shared {
    Marks large;
    std::uint64_t first;
  };

  Pieces<T> acc;
  Cutoff<Value>* cutoff;
  Candidates<Value> found;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const Key<Value> threshold = cutoff->reached;
    if (threshold == 0) {
      return;
    }
    const TileRun run = TileRun::of(block, acc.tiles);
    std::uint64_t all = 0;
    for (std::uint64_t tile = run.begin; tile < run.end; ++tile) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) { shared.large.clear(thread); });
      block.each([&](unsigned thread) {
        each_loaded(
            thread, here.size, [&](unsigned i) { return magnitude_key(here.acc(i)); },
            [&](unsigned i, Key<Value> key) {
              if (key >= threshold) {
                shared.large.mark(i);
                if (!is_finite_key<Value>(key)) {
                  cutoff->finite = 0;
                }
              }
            });
      });
      const std::uint32_t count = shared.large.count(block);
      block.each([&](unsigned thread) {
        if (thread == 0) {
          shared.first = count == 0 ? 0 : add(cutoff->candidates, std::uint64_t{count});
          found.first[tile] = shared.first;
          found.counts.of_tile[tile] = count;
        }
      });
      block.each([&](unsigned thread) {
        for (unsigned i = thread; i < here.size; i += kThreads) {
          const std::uint64_t at = shared.first + shared.large.rank(i);
          if (shared.large.has(i) && at < found.room) {
            found.offsets[at] = static_cast<std::uint16_t>(i);
            found.values[at] = here.acc(i);
          }
        }
      });
      all += count;
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        found.counts.before_run[block.number()] = all;
      }
    });
  }
};

/// Whether the candidates are enough. One block.
template <class Value>
struct ChooseRoute {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
  };

  Cutoff<Value>* cutoff;
  Candidates<Value> found;
  std::uint64_t runs;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (cutoff->reached != 0) {
      sum_up(block, shared, found.counts.before_run, runs);
    }
    block.each([&](unsigned thread) {
      if (thread != 0) {
        return;
      }
      const bool swept = cutoff->reached != 0;
      const bool all_there = cutoff->candidates <= found.room;
      const bool enough = cutoff->candidates >= cutoff->left || cutoff->reached == 1;
      if (cutoff->finite == 0) {
        cutoff->route = Route::kNowhere;
        return;
      }
      cutoff->route = swept && all_there && enough ? Route::kCandidates : Route::kAll;
      cutoff->searching = 1;
    });
  }
};

/// Puts the candidates in the order of the index. Tiles have few: 32 threads take one.
template <class T>
struct OrderCandidates {
  using Value = Accumulation<T>;
  static constexpr unsigned kLanes = 32;
  static constexpr unsigned kTogether = kThreads / kLanes;
  struct Shared {};

  Pieces<T> acc;
  const Cutoff<Value>* cutoff;
  Candidates<Value> found;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    if (cutoff->route != Route::kCandidates) {
      return;
    }
    const TileRun run = TileRun::of(block, acc.tiles);
    std::uint64_t before = found.counts.before_run[block.number()];
    for (std::uint64_t first = run.begin; first < run.end; first += kTogether) {
      const std::uint64_t end = least(first + kTogether, run.end);
      block.each([&](unsigned thread) {
        const std::uint64_t tile = first + thread / kLanes;
        if (tile < end) {
          copy(tile, before + sum(first, tile), thread % kLanes);
        }
      });
      before += sum(first, end);
    }
  }

 private:
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t sum(std::uint64_t first, std::uint64_t end) const {
    std::uint64_t all = 0;
    for (std::uint64_t tile = first; tile < end; ++tile) {
      all += found.counts.of_tile[tile];
    }
    return all;
  }
  GTOPK_HOST_DEVICE void copy(std::uint64_t tile, std::uint64_t to, unsigned lane) const {
    const std::uint64_t begin = acc.tile(tile).begin;
    for (std::uint64_t i = lane; i < found.counts.of_tile[tile]; i += kLanes) {
      found.ordered[to + i] = found.values[found.first[tile] + i];
      found.indices[to + i] = begin + found.offsets[found.first[tile] + i];
    }
  }
};

/// All of acc.
template <class T>
struct AccSource {
  using Value = Accumulation<T>;
  using View = Stretch<T>;

  Pieces<T> acc;

  template <class Use>
  GTOPK_HOST_DEVICE void with_source(Use use) const {
    use(*this);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t tiles() const { return acc.tiles; }
  [[nodiscard]] GTOPK_HOST_DEVICE View open(std::uint64_t tile) const { return acc.tile(tile); }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t loose_tiles() const { return tiles(); }
  [[nodiscard]] GTOPK_HOST_DEVICE View open_loose(std::uint64_t tile) const { return open(tile); }
};

/// acc, or the candidates found in it.
template <class T>
struct SelectionSource {
  using Value = Accumulation<T>;

  AccSource<T> all;
  Candidates<Value> found;
  const Cutoff<Value>* cutoff;

  template <class Use>
  GTOPK_HOST_DEVICE void with_source(Use use) const {
    if (cutoff->route == Route::kCandidates) {
      use(ListSource<Value, std::uint64_t>{{found.indices, found.ordered}, &cutoff->candidates});
    } else {
      use(all);
    }
  }
};

/// What a selection works in; in the device's memory.
template <class Value>
struct SelectionRoom {
  RefineRoom<Value> refine;
  Candidates<Value> candidates;

  /// Of the candidates, for k entries of d.
  [[nodiscard]] static std::uint64_t candidates_of(std::uint64_t d, std::uint64_t k) {
    constexpr std::uint64_t kFewest = 32'768;
    return least(d, 2 * least(k, d) + kFewest);
  }

  static SelectionRoom in(Room& memory, std::uint64_t tiles, std::uint64_t d, std::uint64_t k) {
    SelectionRoom room;
    room.refine = RefineRoom<Value>::in(memory, tiles);
    Candidates<Value>& candidates = room.candidates;
    candidates.room = candidates_of(d, k);
    candidates.values = memory.take<Value>(candidates.room);
    candidates.offsets = memory.take<std::uint16_t>(candidates.room);
    candidates.first = memory.take<std::uint64_t>(tiles);
    candidates.counts = RunCounts::in(memory, tiles);
    candidates.ordered = memory.take<Value>(candidates.room);
    candidates.indices = memory.take<std::uint64_t>(candidates.room);
    return room;
  }
};

/// All launches of a selection. `kept`: room for min(k, d); `last`: the k-th key of the selection
/// before, then of this one; null where nobody keeps it.
template <class T, class Index, class Executor>
void select(Executor& executor, const Pieces<T>& acc, std::uint64_t k,
            const SelectionRoom<Accumulation<T>>& room, EntriesOut<Accumulation<T>, Index> kept,
            Report* report, std::uint64_t* last) {
  using Value = Accumulation<T>;
  const Candidates<Value>& found = room.candidates;
  const KeyRoom<Value>& key = room.refine.key;
  const std::uint64_t runs = runs_of(executor);
  executor.launch(1, BeginSweep<Value>{key, last, k});
  executor.launch(runs, WithLast{SweepCandidates<T>{acc, key.cutoff, found},
                                 ChooseRoute<Value>{key.cutoff, found, runs}, key.ended});
  executor.launch(runs, OrderCandidates<T>{acc, key.cutoff, found});
  refine(executor, SelectionSource<T>{{acc}, found, key.cutoff}, room.refine, report, last, kept,
         EntriesOut<Value, Index>{});
}

}  // namespace gtopk::sparse::device
