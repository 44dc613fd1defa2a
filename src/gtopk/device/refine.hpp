// Sparse, device room: the first k of a source in the selection order, in the order of the index:
// once the k-th key is known (find_key.hpp), each tile counts its entries, the counts are added up,
// and each tile writes its own where they belong.
//
// A source is one of find_key.hpp's that also has tiles() and open(tile), a view with size,
// value(i) and index(i), by ascending index.
#pragma once

#include <cstdint>

#include "gtopk/detached.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse::device {

/// What the host is told, in host memory.
using Report = SelectionReport;

/// Of launches whose blocks take runs of tiles: so that what is before a tile follows from sums of
/// few blocks.
inline constexpr std::uint64_t kMostRuns = 1024;

template <class Executor>
[[nodiscard]] std::uint64_t runs_of(const Executor& executor) {
  return least<std::uint64_t>(executor.wide(), kMostRuns);
}

struct TileRun {
  std::uint64_t begin;
  std::uint64_t end;

  template <class Block>
  [[nodiscard]] GTOPK_HOST_DEVICE static TileRun of(const Block& block, std::uint64_t tiles) {
    const std::uint64_t each = (tiles + block.count() - 1) / block.count();
    return {least(block.number() * each, tiles), least((block.number() + 1) * each, tiles)};
  }
};

/// How many of something there are; in the device's memory.
struct RunCounts {
  std::uint32_t* of_tile = nullptr;
  std::uint64_t* before_run = nullptr;  ///< first of each run; the last one: all

  static RunCounts in(Room& memory, std::uint64_t tiles) {
    return {memory.take<std::uint32_t>(tiles), memory.take<std::uint64_t>(kMostRuns + 1)};
  }
};

struct TileCounts {
  RunCounts larger;
  RunCounts equal;
  RunCounts any;  ///< that are not zero

  static TileCounts in(Room& memory, std::uint64_t tiles) {
    return {RunCounts::in(memory, tiles), RunCounts::in(memory, tiles),
            RunCounts::in(memory, tiles)};
  }
};

/// What a refinement works in.
template <class Value>
struct RefineRoom {
  KeyRoom<Value> key;
  TileCounts counts;

  static RefineRoom in(Room& memory, std::uint64_t tiles) {
    return {KeyRoom<Value>::in(memory), TileCounts::in(memory, tiles)};
  }
};

/// Entries of a list whose size an earlier launch has found.
template <class Value, class Index>
struct ListSource {
  EntriesOut<Value, Index> list;
  const std::uint64_t* count;  // its size

  struct View {
    const Index* indices;
    const Value* values;
    unsigned size;

    [[nodiscard]] GTOPK_HOST_DEVICE Value value(unsigned i) const { return values[i]; }
    [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t index(unsigned i) const { return indices[i]; }
  };

  template <class Use>
  GTOPK_HOST_DEVICE void with_source(Use use) const {
    use(*this);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t tiles() const { return tiles_of<kTile>(*count); }
  [[nodiscard]] GTOPK_HOST_DEVICE View open(std::uint64_t tile) const { return part<kTile>(tile); }
  /// An entry for each thread: a list is short, and all multiprocessors should have part of it.
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t loose_tiles() const {
    return tiles_of<kThreads>(*count);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE View open_loose(std::uint64_t tile) const {
    return part<kThreads>(tile);
  }

 private:
  template <unsigned Size>
  [[nodiscard]] GTOPK_HOST_DEVICE View part(std::uint64_t number) const {
    const std::uint64_t first = number * Size;
    return {list.indices + first, list.values + first,
            static_cast<unsigned>(least<std::uint64_t>(Size, *count - first))};
  }
};

template <class Source, class Value>
struct CountTiles {
  struct Counts {
    std::uint32_t larger;
    std::uint32_t equal;
    std::uint32_t any;
  };
  struct Shared {
    Counts tile;
    std::uint64_t larger;
    std::uint64_t equal;
    std::uint64_t any;
  };

  Source source;
  const Cutoff<Value>* cutoff;
  TileCounts counts;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (cutoff->route == Route::kNowhere) {
      return;
    }
    source.with_source([&](const auto& entries) { count(block, shared, entries); });
  }

 private:
  template <class Block, class Entries>
  GTOPK_HOST_DEVICE void count(Block& block, Shared& shared, const Entries& entries) const {
    const Key<Value> kth = cutoff->key;
    const TileRun run = TileRun::of(block, entries.tiles());
    block.each([&](unsigned thread) {
      if (thread == 0) {
        shared = {};
      }
    });
    for (std::uint64_t tile = run.begin; tile < run.end; ++tile) {
      const auto view = entries.open(tile);
      block.each([&](unsigned thread) {
        Counts here{};
        each_loaded(
            thread, view.size, [&](unsigned i) { return magnitude_key(view.value(i)); },
            [&](unsigned, Key<Value> key) {
              here.larger += key > kth ? 1U : 0U;
              here.equal += key == kth && key != 0 ? 1U : 0U;
              here.any += key != 0 ? 1U : 0U;
            });
        if (here.any != 0) {
          add(shared.tile.larger, here.larger);
          add(shared.tile.equal, here.equal);
          add(shared.tile.any, here.any);
        }
      });
      block.each([&](unsigned thread) {
        if (thread == 0) {
          counts.larger.of_tile[tile] = shared.tile.larger;
          counts.equal.of_tile[tile] = shared.tile.equal;
          counts.any.of_tile[tile] = shared.tile.any;
          shared.larger += shared.tile.larger;
          shared.equal += shared.tile.equal;
          shared.any += shared.tile.any;
          shared.tile = {};
        }
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        counts.larger.before_run[block.number()] = shared.larger;
        counts.equal.before_run[block.number()] = shared.equal;
        counts.any.before_run[block.number()] = shared.any;
      }
    });
  }
};

/// Adds up what the runs have counted, and tells the host. One block.
template <class Value>
struct AddRuns {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
  };

  const Cutoff<Value>* cutoff;
  TileCounts counts;
  std::uint64_t runs;
  Report* report;
  /// The k-th key, for the next selection; may be null.
  std::uint64_t* last;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    Report found;
    if (cutoff->route != Route::kNowhere) {
      const std::uint64_t larger = sum_up(block, shared, counts.larger.before_run, runs);
      const std::uint64_t equal = sum_up(block, shared, counts.equal.before_run, runs);
      const std::uint64_t any = sum_up(block, shared, counts.any.before_run, runs);
      found.kept = larger + least(equal, cutoff->left);
      found.dropped = any - found.kept;
      found.finite = 1;
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *report = found;
        if (last != nullptr && found.finite != 0) {
          *last = cutoff->key;
        }
      }
    });
  }
};

/// Writes the entries that are kept, and those that are not, each ascending by index.
template <class Source, class Value, class Index>
struct WriteEntries {
  struct Shared {
    Marks larger;
    Marks equal;
    Marks any;
  };

  Source source;
  const Cutoff<Value>* cutoff;
  TileCounts counts;
  EntriesOut<Value, Index> kept;
  EntriesOut<Value, Index> dropped;  // null: nobody wants them

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (cutoff->route == Route::kNowhere) {
      return;
    }
    source.with_source([&](const auto& entries) { write_run(block, shared, entries); });
  }

 private:
  struct Before {
    std::uint64_t larger;
    std::uint64_t equal;
    std::uint64_t any;
  };

  template <class Block, class Entries>
  GTOPK_HOST_DEVICE void write_run(Block& block, Shared& shared, const Entries& entries) const {
    const TileRun run = TileRun::of(block, entries.tiles());
    Before before{counts.larger.before_run[block.number()], counts.equal.before_run[block.number()],
                  counts.any.before_run[block.number()]};
    for (std::uint64_t tile = run.begin; tile < run.end; ++tile) {
      const Before here{counts.larger.of_tile[tile], counts.equal.of_tile[tile],
                        counts.any.of_tile[tile]};
      const bool keeps = here.larger != 0 || (here.equal != 0 && before.equal < cutoff->left);
      if (keeps || (dropped.indices != nullptr && here.any != 0)) {
        write(block, shared, entries.open(tile), before);
      }
      before = {before.larger + here.larger, before.equal + here.equal, before.any + here.any};
    }
  }

  template <class Block, class View>
  GTOPK_HOST_DEVICE void write(Block& block, Shared& shared, const View& view,
                               const Before& before) const {
    const Key<Value> kth = cutoff->key;
    const std::uint64_t left = cutoff->left;
    block.each([&](unsigned thread) {
      shared.larger.clear(thread);
      shared.equal.clear(thread);
      shared.any.clear(thread);
    });
    block.each([&](unsigned thread) {
      each_loaded(
          thread, view.size, [&](unsigned i) { return magnitude_key(view.value(i)); },
          [&](unsigned i, Key<Value> key) {
            if (key != 0) {
              shared.any.mark(i);
            }
            if (key > kth) {
              shared.larger.mark(i);
            } else if (key == kth && key != 0) {
              shared.equal.mark(i);
            }
          });
    });
    shared.larger.count(block);
    shared.equal.count(block);
    if (dropped.indices != nullptr) {
      shared.any.count(block);
    }
    block.each([&](unsigned thread) {
      for (unsigned i = thread; i < view.size; i += kThreads) {
        if (!shared.any.has(i)) {
          continue;
        }
        const std::uint64_t larger = before.larger + shared.larger.rank(i);
        const std::uint64_t equal = before.equal + shared.equal.rank(i);
        const std::uint64_t kept_before = larger + least(equal, left);
        if (shared.larger.has(i) || (shared.equal.has(i) && equal < left)) {
          kept.indices[kept_before] = static_cast<Index>(view.index(i));
          kept.values[kept_before] = view.value(i);
        } else if (dropped.indices != nullptr) {
          const std::uint64_t at = before.any + shared.any.rank(i) - kept_before;
          dropped.indices[at] = static_cast<Index>(view.index(i));
          dropped.values[at] = view.value(i);
        }
      }
    });
  }
};

/// All launches of a refinement, from a cutoff whose route, `left` and `searching` are set.
template <class Executor, class Source, class Value, class Index>
void refine(Executor& executor, const Source& source, const RefineRoom<Value>& room, Report* report,
            std::uint64_t* last, EntriesOut<Value, Index> kept, EntriesOut<Value, Index> dropped) {
  Cutoff<Value>* const cutoff = room.key.cutoff;
  const std::uint64_t runs = runs_of(executor);
  find_key(executor, source, room.key);
  executor.launch(
      runs, WithLast{CountTiles<Source, Value>{source, cutoff, room.counts},
                     AddRuns<Value>{cutoff, room.counts, runs, report, last}, room.key.ended});
  executor.launch(runs,
                  WriteEntries<Source, Value, Index>{source, cutoff, room.counts, kept, dropped});
}

}  // namespace gtopk::sparse::device
