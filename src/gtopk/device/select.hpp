// Sparse, device room: the exact selection of one rank from acc = gradient + residual.
//
// Where the last selection's k-th key is known, one sweep takes what reaches somewhat less than it;
// if that was enough, the first k are found among these, and acc is read once. Otherwise they are
// found in all of acc. Neither tensor nor residual is written.
#pragma once

#include <cstdint>
#include <limits>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/refine.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

/// Candidates of each tile in a row, the tiles in any order. In the device's memory.
template <class Value>
struct Candidates {
  Value* values = nullptr;
  std::uint16_t* offsets = nullptr;  ///< in their tile
  std::uint64_t room = 0;
  std::uint64_t* first = nullptr;  ///< of each tile
  std::uint32_t* count = nullptr;  ///< likewise
};

/// What a last k-th key is lowered to, so that somewhat more entries reach it: by an eighth or
/// less. At least 1.
template <class Value>
[[nodiscard]] GTOPK_HOST_DEVICE Key<Value> lowered(Key<Value> key) {
  constexpr Key<Value> kEighth = Key<Value>{1} << (std::numeric_limits<Value>::digits - 1 - 3);
  return key > kEighth ? key - kEighth : 1;
}

/// Before anything else. One block.
template <class Value>
struct BeginSelection {
  struct Shared {};

  Cutoff<Value>* cutoff;
  std::uint64_t* bins;
  const std::uint64_t* last;  // null or 0: not known
  std::uint64_t k;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < kBins; bin += kThreads) {
        bins[bin] = 0;
      }
      if (thread == 0) {
        const std::uint64_t before = last == nullptr ? 0 : *last;
        Cutoff<Value> first;
        first.left = k;
        first.reached = before == 0 ? 0 : lowered<Value>(static_cast<Key<Value>>(before));
        *cutoff = first;
      }
    });
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
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) { shared.large.clear(thread); });
      block.each([&](unsigned thread) {
        for (unsigned i = thread; i < here.size; i += kThreads) {
          const Key<Value> key = magnitude_key(here.acc(i));
          if (key >= threshold) {
            shared.large.mark(i);
            if (!is_finite_key<Value>(key)) {
              cutoff->finite = 0;
            }
          }
        }
      });
      const std::uint32_t count = shared.large.count(block);
      block.each([&](unsigned thread) {
        if (thread == 0) {
          shared.first = count == 0 ? 0 : add(cutoff->candidates, std::uint64_t{count});
          found.first[tile] = shared.first;
          found.count[tile] = count;
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
    }
  }
};

/// Whether the candidates are enough. One block.
template <class Value>
struct ChooseRoute {
  struct Shared {};

  Cutoff<Value>* cutoff;
  std::uint64_t room;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread != 0) {
        return;
      }
      const bool swept = cutoff->reached != 0;
      const bool all_there = cutoff->candidates <= room;
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

/// acc, or the candidates found in it.
template <class T>
struct SelectionSource {
  using Value = Accumulation<T>;

  Pieces<T> acc;
  Candidates<Value> found;
  const Cutoff<Value>* cutoff;

  struct View {
    Stretch<T> here;
    const Value* values;
    const std::uint16_t* offsets;
    unsigned size;

    [[nodiscard]] GTOPK_HOST_DEVICE Value value(unsigned i) const {
      return values != nullptr ? values[i] : here.acc(i);
    }
    [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t index(unsigned i) const {
      return here.begin + (values != nullptr ? offsets[i] : i);
    }
  };

  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t tiles() const { return acc.tiles; }
  [[nodiscard]] GTOPK_HOST_DEVICE View open(std::uint64_t tile) const {
    const Stretch<T> here = acc.tile(tile);
    if (cutoff->route == Route::kCandidates) {
      const std::uint64_t first = found.first[tile];
      return {here, found.values + first, found.offsets + first, found.count[tile]};
    }
    return {here, nullptr, nullptr, here.size};
  }
};

/// What a selection works in; in the device's memory.
template <class Value>
struct SelectionRoom {
  Cutoff<Value>* cutoff = nullptr;
  std::uint64_t* bins = nullptr;
  TileCounts counts;
  Candidates<Value> candidates;

  /// Of the candidates, for k entries of d.
  [[nodiscard]] static std::uint64_t candidates_of(std::uint64_t d, std::uint64_t k) {
    constexpr std::uint64_t kFewest = 32'768;
    return least(d, 2 * least(k, d) + kFewest);
  }

  static SelectionRoom in(Room& memory, std::uint64_t tiles, std::uint64_t d, std::uint64_t k) {
    SelectionRoom room;
    room.cutoff = memory.take<Cutoff<Value>>(1);
    room.bins = memory.take<std::uint64_t>(kBins);
    room.counts.larger = memory.take<std::uint64_t>(tiles + 1);
    room.counts.equal = memory.take<std::uint64_t>(tiles + 1);
    room.counts.any = memory.take<std::uint64_t>(tiles + 1);
    room.candidates.room = candidates_of(d, k);
    room.candidates.values = memory.take<Value>(room.candidates.room);
    room.candidates.offsets = memory.take<std::uint16_t>(room.candidates.room);
    room.candidates.first = memory.take<std::uint64_t>(tiles);
    room.candidates.count = memory.take<std::uint32_t>(tiles);
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
  executor.launch(1, BeginSelection<Value>{room.cutoff, room.bins, last, k});
  executor.launch(executor.wide(), SweepCandidates<T>{acc, room.cutoff, room.candidates});
  executor.launch(1, ChooseRoute<Value>{room.cutoff, room.candidates.room});
  refine(executor, SelectionSource<T>{acc, room.candidates, room.cutoff}, room.cutoff, room.bins,
         room.counts, report, last, kept, EntriesOut<Value, Index>{});
}

}  // namespace gtopk::sparse::device
