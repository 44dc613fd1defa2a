// Sparse, device: the exact selection of one rank from acc = gradient + residual.
//
// A sample gives a threshold that somewhat more than k elements reach. One sweep collects these
// elements. If there are enough of them, the first k are found among them, and acc is read only
// once. Otherwise the first k are found in all of acc. Neither tensor nor residual is written.
#pragma once

#include <cstdint>

#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/refine.hpp"
#include "src/gtopk/device/sample.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

/// The elements that reach a threshold, in the device's memory.
template <class Value>
struct Candidates {
  std::uint64_t capacity = 0;
  /// The candidates of a tile are contiguous; the tiles are in any order.
  Value* values = nullptr;
  std::uint16_t* offsets = nullptr;  ///< offsets within their tile
  std::uint32_t* first = nullptr;    ///< first candidate of each tile
  std::uint32_t* of_tile = nullptr;
  std::uint32_t* before_run = nullptr;  ///< as in TileCounts
  /// All candidates in index order.
  Value* ordered = nullptr;
  Index* indices = nullptr;
};

/// Begins the sweep with the threshold found in the sample. Runs as one block.
template <class Value>
struct BeginSweep {
  struct Shared {};

  Cutoff<Value>* cutoff;
  std::uint64_t k;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        Cutoff<Value> first;
        first.finite = cutoff->finite;
        first.left = k;
        first.reached = cutoff->key == 0 ? 1 : cutoff->key;
        *cutoff = first;
      }
    });
  }
};

/// Reads all of acc, and keeps the elements that reach the threshold, up to the capacity.
template <class T>
struct SweepCandidates {
  using Value = Accumulation<T>;
  static constexpr unsigned kGroup = 8;  // number of words whose bits one thread adds up
  static constexpr unsigned kGroups = Marks::kWords / kGroup;
  struct Shared {
    std::uint32_t words[Marks::kWords];   ///< which elements of the tile reach the threshold
    std::uint32_t before[Marks::kWords];  ///< how many before each word in its group
    std::uint32_t groups[kGroups];        ///< how many are in each group
    std::uint32_t count;
    std::uint32_t first;
    std::uint32_t all;
  };

  Pieces<T> acc;
  Cutoff<Value>* cutoff;
  Candidates<Value> found;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const Key<Value> threshold = cutoff->reached;
    const TileRun run = TileRun::of(block, acc.tiles);
    block.each([&](unsigned thread) {
      for (unsigned word = thread; word < Marks::kWords; word += kThreads) {
        shared.words[word] = 0;
      }
      if (thread == 0) {
        shared.count = 0;
        shared.all = 0;
      }
    });
    for (std::uint32_t tile = run.begin; tile < run.end; ++tile) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        each_loaded(
            thread, here.size, [&](std::size_t i) { return magnitude_key(here.acc(i)); },
            [&](unsigned i, Key<Value> key) {
              if (key >= threshold) {
                set_bits(shared.words[i / 32], std::uint32_t{1} << (i % 32));
                add(shared.count, std::uint32_t{1});
                if (!is_finite_key<Value>(key)) {
                  clear(cutoff->finite);
                }
              }
            });
      });
      block.each([&](unsigned thread) {
        if (thread < kGroups) {
          std::uint32_t sum = 0;
          for (unsigned word = thread * kGroup; word < (thread + 1) * kGroup; ++word) {
            shared.before[word] = sum;
            sum += count_bits(shared.words[word]);
          }
          shared.groups[thread] = sum;
        }
        if (thread + 1 == kThreads) {
          const std::uint32_t count = shared.count;
          shared.count = 0;
          shared.first = count == 0 ? 0 : add(cutoff->candidates, count);
          shared.all += count;
          found.first[tile] = shared.first;
          found.of_tile[tile] = count;
        }
      });
      block.each([&](unsigned thread) {
        for (unsigned word = thread; word < Marks::kWords; word += kThreads) {
          std::uint32_t bits = shared.words[word];
          if (bits == 0) {
            continue;
          }
          shared.words[word] = 0;  // for the next tile
          std::uint32_t at = shared.first + shared.before[word];
          for (unsigned group = 0; group < word / kGroup; ++group) {
            at += shared.groups[group];
          }
          for (; bits != 0 && at < found.capacity; bits &= bits - 1, ++at) {
            const unsigned i = word * 32 + lowest_bit(bits);
            found.offsets[at] = static_cast<std::uint16_t>(i);
            found.values[at] = here.acc(i);
          }
        }
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        found.before_run[block.number()] = shared.all;
      }
    });
  }
};

/// Decides whether the candidates are enough. Runs as one block.
template <class Value>
struct ChooseRoute {
  struct Shared {
    std::uint32_t sums[kThreads];
    std::uint32_t spare[kThreads];
  };

  Cutoff<Value>* cutoff;
  Candidates<Value> found;
  std::uint64_t runs;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    sum_up(block, shared, found.before_run, runs);
    block.each([&](unsigned thread) {
      if (thread != 0) {
        return;
      }
      const bool all_there = cutoff->candidates <= found.capacity;
      const bool enough = cutoff->candidates >= cutoff->left || cutoff->reached == 1;
      if (cutoff->finite == 0) {
        cutoff->route = Route::kNowhere;
        return;
      }
      cutoff->route = all_there && enough ? Route::kCandidates : Route::kAll;
      cutoff->searching = 1;
    });
  }
};

/// Puts the candidates in index order. Tiles have few candidates, so 32 threads take one tile.
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
    std::uint32_t before = found.before_run[block.number()];
    for (std::uint32_t first = run.begin; first < run.end; first += kTogether) {
      const std::uint32_t end = least(first + kTogether, run.end);
      block.each([&](unsigned thread) {
        const std::uint32_t tile = first + thread / kLanes;
        if (tile < end) {
          copy(tile, before + sum(first, tile), thread % kLanes);
        }
      });
      before += sum(first, end);
    }
  }

 private:
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint32_t sum(std::uint32_t first, std::uint32_t end) const {
    std::uint32_t all = 0;
    for (std::uint32_t tile = first; tile < end; ++tile) {
      all += found.of_tile[tile];
    }
    return all;
  }
  GTOPK_HOST_DEVICE void copy(std::uint32_t tile, std::uint32_t to, unsigned lane) const {
    const std::uint64_t begin = acc.tile(tile).begin;
    for (std::uint32_t i = lane; i < found.of_tile[tile]; i += kLanes) {
      found.ordered[to + i] = found.values[found.first[tile] + i];
      found.indices[to + i] = static_cast<Index>(begin + found.offsets[found.first[tile] + i]);
    }
  }
};

/// The source that consists of all of acc.
template <class T>
struct AccSource {
  using Value = Accumulation<T>;
  using View = Stretch<T>;

  Pieces<T> acc;

  template <class Use>
  GTOPK_HOST_DEVICE void with_source(Use use) const {
    use(*this);
  }
  [[nodiscard]] std::uint64_t most_tiles() const { return acc.tiles; }
  [[nodiscard]] std::uint64_t most_loose_tiles() const { return acc.tiles; }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t tiles() const { return acc.tiles; }
  [[nodiscard]] GTOPK_HOST_DEVICE View open(std::uint64_t tile) const { return acc.tile(tile); }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t loose_tiles() const { return tiles(); }
  [[nodiscard]] GTOPK_HOST_DEVICE View open_loose(std::uint64_t tile) const { return open(tile); }
};

/// The source that consists of acc or of the candidates found in it.
template <class T>
struct SelectionSource {
  using Value = Accumulation<T>;

  AccSource<T> all;
  Candidates<Value> found;
  const Cutoff<Value>* cutoff;

  template <class Use>
  GTOPK_HOST_DEVICE void with_source(Use use) const {
    if (cutoff->route == Route::kCandidates) {
      use(list());
    } else {
      use(all);
    }
  }
  [[nodiscard]] std::uint64_t most_tiles() const {
    return most(all.acc.tiles, list().most_tiles());
  }
  [[nodiscard]] std::uint64_t most_loose_tiles() const {
    return most(all.acc.tiles, list().most_loose_tiles());
  }

 private:
  [[nodiscard]] GTOPK_HOST_DEVICE ListSource<Value> list() const {
    return {{found.indices, found.ordered}, &cutoff->candidates, found.capacity};
  }
  [[nodiscard]] static std::uint64_t most(std::uint64_t a, std::uint64_t b) {
    return a < b ? b : a;
  }
};

/// The workspace of a selection, in the device's memory.
template <class Value>
struct SelectionWorkspace {
  RefineWorkspace<Value> refine;
  Candidates<Value> candidates;

  /// The capacity for candidates when k of d elements are selected. 0 means that none are
  /// collected, because reading so few elements several times is quick, or because none or most of
  /// them would be candidates. Whether this is faster was not measured.
  [[nodiscard]] static std::uint64_t candidates_of(std::uint64_t d, std::uint64_t k) {
    constexpr std::uint64_t kFew = std::uint64_t{1} << 19U;
    constexpr std::uint64_t kFewest = 32'768;
    return d <= kFew || k == 0 || k >= d / 2 ? 0 : least(d, 2 * k + kFewest);
  }

  /// `most` is the capacity for candidates.
  static SelectionWorkspace in(Arena& arena, std::uint64_t tiles, std::uint64_t most) {
    SelectionWorkspace workspace;
    const std::uint64_t of_list = tiles_of<kListTile>(most);
    workspace.refine = RefineWorkspace<Value>::in(arena, tiles < of_list ? of_list : tiles);
    Candidates<Value>& candidates = workspace.candidates;
    candidates.capacity = most;
    if (most != 0) {
      candidates.values = arena.take<Value>(most);
      candidates.offsets = arena.take<std::uint16_t>(most);
      candidates.first = arena.take<std::uint32_t>(tiles);
      candidates.of_tile = arena.take<std::uint32_t>(tiles);
      candidates.before_run = arena.take<std::uint32_t>(kMostRuns + 1);
      candidates.ordered = arena.take<Value>(most);
      candidates.indices = arena.take<Index>(most);
    }
    return workspace;
  }
};

/// Returns the sample that determines which elements are candidates, if `most` of d elements may be
/// selected.
template <class Value>
[[nodiscard]] Guess guess_of(std::uint64_t d, std::uint64_t most,
                             const SelectionWorkspace<Value>& workspace) {
  return Guess::of(d, least(most, d), workspace.candidates.capacity);
}

/// Launches the kernels that find candidates in acc; at least `enough` candidates suffice. Other
/// steps run beside them, one after the other, or alone if no candidates are collected.
template <class T, class Executor, class First = Nothing, class Second = Nothing,
          class Third = Nothing>
void find_candidates(Executor& executor, const Pieces<T>& acc, const Guess& guess,
                     std::uint64_t enough, const SelectionWorkspace<Accumulation<T>>& workspace,
                     const First& first = {}, const Second& second = {}, const Third& third = {}) {
  using Value = Accumulation<T>;
  const Candidates<Value>& found = workspace.candidates;
  const KeyWorkspace<Value>& key = workspace.refine.key;
  if (found.capacity == 0) {
    launch(executor, first, key.ended);
    launch(executor, second, key.ended);
    launch(executor, third, key.ended);
    return;
  }
  const SampleSource<T> sample{acc, guess.stride, guess.size};
  launch(executor, both(find_digit(sample, key, 0), first), key.ended);
  // 22 bits of the key are enough.
  const BeginSweep<Value> begin{key.cutoff, enough};
  launch(executor, both(find_digit(sample, key, 1, begin), second), key.ended);
  const std::uint64_t runs = runs_of(executor, acc.tiles);
  const Step sweep{runs, SweepCandidates<T>{acc, key.cutoff, found},
                   ChooseRoute<Value>{key.cutoff, found, runs}};
  const auto last = both(sweep, third);
  executor.launch(runs, WithLast{last.wide, last.last, key.ended});
}

/// Launches the kernels that select among the candidates, or from all of acc. First the entries are
/// counted `by` their bins; then `choose`, a kernel of one block, may set how many are wanted.
/// `then`, another kernel of one block, runs once the cut is known.
template <class T, class Executor, class By, class Choose = Nothing, class Then = Nothing>
void select_found(Executor& executor, const Pieces<T>& acc,
                  const SelectionWorkspace<Accumulation<T>>& workspace,
                  EntriesOut<Accumulation<T>, Index> kept, Report* report, const By& by,
                  const Choose& choose = {}, const Then& then = {}) {
  using Value = Accumulation<T>;
  using Source = SelectionSource<T>;
  const Candidates<Value>& found = workspace.candidates;
  const KeyWorkspace<Value>& key = workspace.refine.key;
  // Counting does not need an order.
  Candidates<Value> unordered = found;
  unordered.ordered = found.values;
  const Histogram<Source, Value, By> count{
      {{acc}, unordered, key.cutoff}, key.cutoff, key.bins, by};
  executor.launch(runs_of(executor, acc.tiles),
                  WithLast{InTurn{OrderCandidates<T>{acc, key.cutoff, found}, count},
                           InTurn{choose, PickDigit<Value>{key.cutoff, key.bins, 0}}, key.ended});
  const Source source{{acc}, found, key.cutoff};
  find_key(executor, source, key, Nothing{}, 1);
  write_entries(executor, source, workspace.refine, report, kept, then);
}

/// Launches a whole selection from d elements. `kept` has capacity for min(k, d) entries.
template <class T, class Executor>
void select(Executor& executor, const Pieces<T>& acc, std::uint64_t d, std::uint64_t k,
            const SelectionWorkspace<Accumulation<T>>& workspace,
            EntriesOut<Accumulation<T>, Index> kept, Report* report) {
  using Value = Accumulation<T>;
  const Guess guess = guess_of(d, k, workspace);
  const std::uint64_t first = workspace.candidates.capacity == 0 ? k : guess.rank;
  executor.launch(1, BeginSearch<Value>{workspace.refine.key, search_of<Value>(first)});
  find_candidates(executor, acc, guess, k, workspace);
  select_found(executor, acc, workspace, kept, report, ByDigit<Value>{0});
}

}  // namespace gtopk::sparse::device
