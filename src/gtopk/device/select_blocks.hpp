// Sparse, device: the selection `block` (select/block.cpp): the first entries of every block of
// elements. A block of threads finds the cut of each block of elements by the digits of its keys
// (find_key.hpp), in its own shared memory. Then the counts are added up, and the entries of each
// block are written.
#pragma once

#include <cstdint>

#include "gtopk/selection_rule.hpp"
#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/refine.hpp"

namespace gtopk::sparse::device {

/// The number of entries that a run of blocks has.
struct BlockCounts {
  std::uint32_t kept;
  std::uint32_t non_zero;

  GTOPK_HOST_DEVICE BlockCounts operator+(const BlockCounts& other) const {
    return {kept + other.kept, non_zero + other.non_zero};
  }
};

/// The known data about each block's cut, in the device's memory.
template <class Value>
struct BlockCuts {
  std::uint32_t* finite = nullptr;  ///< one flag for all; 0 if an element is not finite
  std::uint32_t* ended = nullptr;   ///< for the launch that ends with a last block (ending.hpp)
  Key<Value>* keys = nullptr;
  /// How many of the entries with that key are kept.
  std::uint32_t* left = nullptr;
  std::uint32_t* kept = nullptr;      ///< number of entries kept in all
  BlockCounts* before_run = nullptr;  ///< as in TileCounts

  static BlockCuts in(Arena& arena, std::uint64_t blocks) {
    BlockCuts cuts;
    cuts.finite = arena.take<std::uint32_t>(1);
    cuts.ended = arena.take<std::uint32_t>(1);
    cuts.keys = arena.take<Key<Value>>(blocks);
    cuts.left = arena.take<std::uint32_t>(blocks);
    cuts.kept = arena.take<std::uint32_t>(blocks);
    cuts.before_run = arena.take<BlockCounts>(kMostRuns + 1);
    return cuts;
  }
};

/// The division of a vector into blocks.
struct BlockGrid {
  std::uint64_t d = 0;
  std::uint64_t block = 1;
  std::uint64_t k = 0;
  std::uint64_t k_of_last = 0;

  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t count() const {
    return d / block + (d % block == 0 ? 0 : 1);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint32_t size(std::uint64_t number) const {
    return static_cast<std::uint32_t>(least(block, d - number * block));
  }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint32_t k_of(std::uint64_t number) const {
    return static_cast<std::uint32_t>(size(number) == block ? k : k_of_last);
  }
};

/// Initialises the cuts. Runs first, as one block.
template <class Value>
struct BeginBlocks {
  struct Shared {};

  BlockCuts<Value> cuts;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *cuts.finite = 1;
        *cuts.ended = 0;
      }
    });
  }
};

/// Finds every block's k-th key.
template <class T>
struct CutBlocks {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint32_t bins[kBins];
    std::uint32_t sums[kThreads];
    std::uint32_t spare[kThreads];
    std::uint32_t bin;
    std::uint32_t above;
    BlockCounts of_run;
  };

  Pieces<T> acc;
  BlockGrid grid;
  BlockCuts<Value> cuts;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const TileRun run = TileRun::of(block, grid.count());
    block.each([&](unsigned thread) {
      if (thread == 0) {
        shared.of_run = {};
      }
    });
    for (std::uint32_t number = run.begin; number < run.end; ++number) {
      const Run<T> here(acc, acc.pieces[0].begin + number * grid.block, grid.size(number));
      const std::uint32_t k = grid.k_of(number);
      Key<Value> known = 0;
      std::uint32_t left = k;
      std::uint32_t non_zero = 0;
      for (unsigned level = 0; level < Digits<Value>::kLevels; ++level) {
        const std::uint32_t all = count_digits(block, shared, here, known, level);
        if (level == 0) {
          non_zero = all;
          if (all <= k) {  // all are kept
            left = 0;
            break;
          }
        }
        pick_digit(block, shared, left);
        known |= static_cast<Key<Value>>(block.read(shared.bin)) << Digits<Value>::shift(level);
        left -= block.read(shared.above);
      }
      block.each([&](unsigned thread) {
        if (thread == 0) {
          cuts.keys[number] = known;
          cuts.left[number] = left;
          cuts.kept[number] = least(k, non_zero);
          shared.of_run = shared.of_run + BlockCounts{least(k, non_zero), non_zero};
        }
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        cuts.before_run[block.number()] = shared.of_run;
      }
    });
  }

 private:
  /// Stores in shared.sums how many entries come before each thread's share of the bins, from the
  /// highest bin down; returns the total.
  template <class Block>
  GTOPK_HOST_DEVICE std::uint32_t count_digits(Block& block, Shared& shared, const Run<T>& here,
                                               Key<Value> known, unsigned level) const {
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < kBins; bin += kThreads) {
        shared.bins[bin] = 0;
      }
    });
    block.each([&](unsigned thread) {
      const auto count = [&](unsigned, Key<Value> key) {
        if (!is_finite_key<Value>(key)) {
          clear(*cuts.finite);
        }
        if (key != 0 && Digits<Value>::agrees(key, known, level)) {
          add(shared.bins[Digits<Value>::digit(key, level)], std::uint32_t{1});
        }
      };
      here.with_elements([&](const auto& elements) {
        each_loaded<kFewerBytes>(
            thread, here.size(), [&](unsigned i) { return magnitude_key(elements.acc(i)); }, count);
      });
    });
    block.each([&](unsigned thread) {
      shared.sums[thread] = 0;
      for (unsigned i = 0; i < kEach; ++i) {
        shared.sums[thread] += shared.bins[bin_of(thread, i)];
      }
    });
    return sums_before<kThreads>(block, shared.sums, shared.spare);
  }

  template <class Block>
  GTOPK_HOST_DEVICE void pick_digit(Block& block, Shared& shared, std::uint32_t left) const {
    block.each([&](unsigned thread) {
      std::uint32_t above = shared.sums[thread];
      for (unsigned i = 0; i < kEach; ++i) {
        const std::uint32_t here = shared.bins[bin_of(thread, i)];
        if (above < left && left <= above + here) {
          shared.bin = bin_of(thread, i);
          shared.above = above;
        }
        above += here;
      }
    });
  }

  static constexpr unsigned kEach = kBins / kThreads;
  [[nodiscard]] GTOPK_HOST_DEVICE static unsigned bin_of(unsigned thread, unsigned i) {
    return kBins - 1 - (thread * kEach + i);
  }
};

/// Adds up the kept entries of the runs, and reports the sum to the host. Runs as one block.
template <class Value>
struct AddBlocks {
  struct Shared {
    BlockCounts sums[kThreads];
    BlockCounts spare[kThreads];
  };

  std::uint64_t runs;
  BlockCuts<Value> cuts;
  Report* report;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    Report found;
    if (*cuts.finite != 0) {
      const BlockCounts all = sum_up(block, shared, cuts.before_run, runs);
      found.kept = all.kept;
      found.dropped = all.non_zero - all.kept;
      found.finite = 1;
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *report = found;
      }
    });
  }
};

/// Writes each block's entries, one tile at a time.
template <class T>
struct WriteBlocks {
  using Value = Accumulation<T>;
  struct Shared {
    Marks larger;
    Marks equal;
  };

  Pieces<T> acc;
  BlockGrid grid;
  BlockCuts<Value> cuts;
  EntriesOut<Value, Index> kept;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (*cuts.finite == 0) {
      return;
    }
    const TileRun run = TileRun::of(block, grid.count());
    std::uint32_t before = cuts.before_run[block.number()].kept;
    for (std::uint32_t number = run.begin; number < run.end; ++number) {
      const Key<Value> kth = cuts.keys[number];
      const std::uint64_t first = acc.pieces[0].begin + number * grid.block;
      const std::uint32_t size = grid.size(number);
      std::uint32_t at = before;
      before += cuts.kept[number];
      std::uint32_t left = cuts.left[number];
      for (std::uint32_t begin = 0; begin < size; begin += kTile) {
        const Run<T> here(acc, first + begin, least(kTile, size - begin));
        mark(block, shared, here, kth);
        const std::uint32_t larger = shared.larger.count(block);
        const std::uint32_t equal = shared.equal.count(block);
        block.each([&](unsigned thread) {
          for (unsigned i = thread; i < here.size(); i += kThreads) {
            const std::uint32_t equals = shared.equal.rank(i);
            if (shared.larger.has(i) || (shared.equal.has(i) && equals < left)) {
              const std::uint32_t place = at + shared.larger.rank(i) + least(equals, left);
              kept.indices[place] = static_cast<Index>(first + begin + i);
              kept.values[place] = here.acc(i);
            }
          }
        });
        at += larger + least(equal, left);
        left -= least(equal, left);
      }
    }
  }

 private:
  template <class Block>
  GTOPK_HOST_DEVICE void mark(Block& block, Shared& shared, const Run<T>& here,
                              Key<Value> kth) const {
    block.each([&](unsigned thread) {
      shared.larger.clear(thread);
      shared.equal.clear(thread);
    });
    block.each([&](unsigned thread) {
      const auto mark = [&](unsigned i, Key<Value> key) {
        if (key > kth) {
          shared.larger.mark(i);
        } else if (key == kth && key != 0) {
          shared.equal.mark(i);
        }
      };
      here.with_elements([&](const auto& elements) {
        each_loaded<kFewerBytes>(
            thread, here.size(), [&](unsigned i) { return magnitude_key(elements.acc(i)); }, mark);
      });
    });
  }
};

[[nodiscard]] inline BlockGrid grid_of(std::uint64_t d, const SelectionRule& rule) {
  return {d, rule.block, rule.k, rule.k_of_last};
}

/// Launches a whole selection of kind kBlocks, with blocks of less than 2^32 elements. `kept` has
/// capacity for rule.most entries.
template <class T, class Executor>
void select_blocks(Executor& executor, const Pieces<T>& acc, const BlockGrid& grid,
                   const BlockCuts<Accumulation<T>>& cuts, EntriesOut<Accumulation<T>, Index> kept,
                   Report* report) {
  using Value = Accumulation<T>;
  const std::uint64_t runs = runs_of(executor, grid.count());
  executor.launch(1, BeginBlocks<Value>{cuts});
  executor.launch(runs, WithLast{CutBlocks<T>{acc, grid, cuts},
                                 AddBlocks<Value>{runs, cuts, report}, cuts.ended});
  executor.launch(runs, WriteBlocks<T>{acc, grid, cuts, kept});
}

}  // namespace gtopk::sparse::device
