// Sparse, device: finds the first k entries of a source in the selection order, and writes them in
// index order. Once the k-th key is known (find_key.hpp), the entries of each tile are counted, the
// counts are added up, and each tile's entries are written to their positions.
//
// A source here is a source of find_key.hpp that also has tiles() and open(tile), which returns a
// view with size, value(i) and index(i), by ascending index.
#pragma once

#include <cstdint>

#include "gtopk/detached.hpp"
#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse::device {

/// The report to the host, which is in host memory.
using Report = SelectionReport;

/// The most blocks of a launch whose blocks take runs of tiles: the number of entries before a tile
/// then follows from the sums of few blocks.
inline constexpr std::uint64_t kMostRuns = 1024;

/// The number of blocks of such a launch over this many tiles.
template <class Executor>
[[nodiscard]] std::uint64_t runs_of(const Executor& executor, std::uint64_t tiles) {
  return least<std::uint64_t>(blocks_for(executor, tiles), kMostRuns);
}

struct TileRun {
  std::uint32_t begin;
  std::uint32_t end;

  template <class Block>
  [[nodiscard]] GTOPK_HOST_DEVICE static TileRun of(const Block& block, std::uint64_t tiles) {
    const std::uint64_t each = (tiles + block.count() - 1) / block.count();
    return {static_cast<std::uint32_t>(least(block.number() * each, tiles)),
            static_cast<std::uint32_t>(least((block.number() + 1) * each, tiles))};
  }
};

/// The number of entries of each kind. 32 bits suffice, because an index has 32 bits.
struct Kinds {
  std::uint32_t larger;
  std::uint32_t equal;
  std::uint32_t any;  ///< all nonzero entries

  GTOPK_HOST_DEVICE Kinds operator+(const Kinds& other) const {
    return {larger + other.larger, equal + other.equal, any + other.any};
  }
};

/// The counts of tiles and of runs, in the device's memory.
struct TileCounts {
  Kinds* of_tile = nullptr;
  Kinds* before_run = nullptr;  ///< at first each run's own counts; the last is the total

  static TileCounts in(Arena& arena, std::uint64_t tiles) {
    return {arena.take<Kinds>(tiles), arena.take<Kinds>(kMostRuns + 1)};
  }
};

/// The workspace of a refinement.
template <class Value>
struct RefineWorkspace {
  KeyWorkspace<Value> key;
  TileCounts counts;

  static RefineWorkspace in(Arena& arena, std::uint64_t tiles) {
    return {KeyWorkspace<Value>::in(arena), TileCounts::in(arena, tiles)};
  }
};

/// The tile size of a list. It is small because lists are short and all multiprocessors should get
/// part of one.
inline constexpr unsigned kListTile = 1024;

/// Entries of a list whose size an earlier launch has found.
template <class Value>
struct ListSource {
  EntriesOut<Value, Index> list;
  const std::uint32_t* count;  // its size
  std::uint64_t most;

  struct View {
    const Index* indices;
    const Value* values;
    unsigned size;

    [[nodiscard]] GTOPK_HOST_DEVICE Value value(std::size_t i) const { return values[i]; }
    [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t index(unsigned i) const { return indices[i]; }
  };

  template <class Use>
  GTOPK_HOST_DEVICE void with_source(Use use) const {
    use(*this);
  }
  [[nodiscard]] std::uint64_t most_tiles() const { return tiles_of<kListTile>(most); }
  [[nodiscard]] std::uint64_t most_loose_tiles() const { return tiles_of<kThreads>(most); }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t tiles() const {
    return tiles_of<kListTile>(*count);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE View open(std::uint64_t tile) const {
    return part<kListTile>(tile);
  }
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
  struct Shared {
    Kinds tile;
    Kinds run;
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
    for (std::uint32_t tile = run.begin; tile < run.end; ++tile) {
      const auto view = entries.open(tile);
      block.each([&](unsigned thread) {
        Kinds here{};
        each_loaded(
            thread, view.size, [&](std::size_t i) { return magnitude_key(view.value(i)); },
            [&](unsigned, Key<Value> key) {
              here.larger += key > kth ? 1U : 0U;
              here.equal += key == kth && key != 0 ? 1U : 0U;
              here.any += key != 0 ? 1U : 0U;
            });
        add_by_all(shared.tile.larger, here.larger);
        add_by_all(shared.tile.equal, here.equal);
        add_by_all(shared.tile.any, here.any);
      });
      block.each([&](unsigned thread) {
        if (thread == 0) {
          counts.of_tile[tile] = shared.tile;
          shared.run = shared.run + shared.tile;
          shared.tile = {};
        }
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        counts.before_run[block.number()] = shared.run;
      }
    });
  }
};

/// Adds up the counts of the runs, and reports the sum to the host. Runs as one block.
template <class Value>
struct AddRuns {
  struct Shared {
    Kinds sums[kThreads];
    Kinds spare[kThreads];
  };

  const Cutoff<Value>* cutoff;
  TileCounts counts;
  std::uint64_t runs;
  Report* report;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    Report found;
    if (cutoff->route != Route::kNowhere) {
      const Kinds all = sum_up(block, shared, counts.before_run, runs);
      found.kept = all.larger + least<std::uint64_t>(all.equal, cutoff->left);
      found.dropped = all.any - found.kept;
      found.finite = 1;
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *report = found;
      }
    });
  }
};

/// Writes the kept and the dropped entries, each in ascending index order.
template <class Source, class Value>
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
  EntriesOut<Value, Index> dropped;  // null if they are not wanted

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (cutoff->route == Route::kNowhere) {
      return;
    }
    source.with_source([&](const auto& entries) { write_run(block, shared, entries); });
  }

 private:
  template <class Block, class Entries>
  GTOPK_HOST_DEVICE void write_run(Block& block, Shared& shared, const Entries& entries) const {
    const TileRun run = TileRun::of(block, entries.tiles());
    Kinds before = counts.before_run[block.number()];
    for (std::uint32_t tile = run.begin; tile < run.end; ++tile) {
      const Kinds here = counts.of_tile[tile];
      const bool keeps = here.larger != 0 || (here.equal != 0 && before.equal < cutoff->left);
      if (keeps || (dropped.indices != nullptr && here.any != 0)) {
        write(block, shared, entries.open(tile), before);
      }
      before = before + here;
    }
  }

  template <class Block, class View>
  GTOPK_HOST_DEVICE void write(Block& block, Shared& shared, const View& view,
                               const Kinds& before) const {
    const Key<Value> kth = cutoff->key;
    const auto left = static_cast<std::uint32_t>(least<std::uint64_t>(cutoff->left, ~0U));
    const bool drops = dropped.indices != nullptr;
    block.each([&](unsigned thread) {
      shared.larger.clear(thread);
      shared.equal.clear(thread);
      shared.any.clear(thread);
    });
    block.each([&](unsigned thread) {
      each_loaded(
          thread, view.size, [&](std::size_t i) { return magnitude_key(view.value(i)); },
          [&](unsigned i, Key<Value> key) {
            if (drops && key != 0) {
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
        if (drops ? !shared.any.has(i) : !shared.larger.has(i) && !shared.equal.has(i)) {
          continue;
        }
        const std::uint32_t larger = before.larger + shared.larger.rank(i);
        const std::uint32_t equal = before.equal + shared.equal.rank(i);
        const std::uint32_t kept_before = larger + least(equal, left);
        if (shared.larger.has(i) || (shared.equal.has(i) && equal < left)) {
          kept.indices[kept_before] = static_cast<Index>(view.index(i));
          kept.values[kept_before] = view.value(i);
        } else if (dropped.indices != nullptr) {
          const std::uint32_t at = before.any + shared.any.rank(i) - kept_before;
          dropped.indices[at] = static_cast<Index>(view.index(i));
          dropped.values[at] = view.value(i);
        }
      }
    });
  }
};

/// Launches the kernels that write the kept entries once the key is known; `then`, a kernel of one
/// block, runs beside them.
template <class Executor, class Source, class Value, class Then>
void write_entries(Executor& executor, const Source& source,
                   const RefineWorkspace<Value>& workspace, Report* report,
                   EntriesOut<Value, Index> kept, const Then& then) {
  Cutoff<Value>* const cutoff = workspace.key.cutoff;
  const std::uint64_t runs = runs_of(executor, source.most_tiles());
  executor.launch(runs,
                  WithLast{CountTiles<Source, Value>{source, cutoff, workspace.counts},
                           InTurn{AddRuns<Value>{cutoff, workspace.counts, runs, report}, then},
                           workspace.key.ended});
  executor.launch(runs, WriteEntries<Source, Value>{source, cutoff, workspace.counts, kept, {}});
}

}  // namespace gtopk::sparse::device
