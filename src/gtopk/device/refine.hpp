// Sparse, device room: the first k of a source in the selection order, in the order of the index.
//
// A histogram of the keys' highest bits says in which bin the k-th is; the next one looks into that
// bin, until the key is known. Then each tile counts its entries, one block adds the counts up, and
// each tile writes its own where they belong. The host decides nothing: all launches are enqueued
// at once, and those with nothing to do return.
//
// A source has tiles() and open(tile), a view with size, value(i) and index(i); what it is made of
// must not change while it is refined.
#pragma once

#include <cstdint>

#include "gtopk/detached.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse::device {

/// From where entries are taken.
enum class Route : std::uint32_t { kNowhere, kAll, kCandidates };

/// What is known of the k-th key; in the device's memory.
template <class Value>
struct Cutoff {
  Key<Value> key = 0;
  /// Whether lower bits of the key are still to be found.
  std::uint32_t searching = 0;
  /// 0: something was NaN or infinite.
  std::uint32_t finite = 1;
  Route route = Route::kNowhere;
  /// Of those with that key, how many are kept, the lowest indices first.
  std::uint64_t left = 0;
  /// Of a sweep for candidates: what they reach (0: there was none), and how many there were.
  Key<Value> reached = 0;
  std::uint64_t candidates = 0;
};

/// What the host is told, in host memory.
using Report = SelectionReport;

inline constexpr unsigned kDigitBits = 11;
inline constexpr unsigned kBins = 1U << kDigitBits;

/// The bits of a key in digits, from the highest on.
template <class Value>
struct Digits {
  static constexpr unsigned kBits = 8 * sizeof(Value) - 1;
  static constexpr unsigned kLevels = (kBits + kDigitBits - 1) / kDigitBits;

  /// How many bits are below the digit.
  [[nodiscard]] GTOPK_HOST_DEVICE static constexpr unsigned shift(unsigned level) {
    const unsigned above = kDigitBits * (level + 1);
    return above < kBits ? kBits - above : 0;
  }
  [[nodiscard]] GTOPK_HOST_DEVICE static constexpr unsigned shift_before(unsigned level) {
    return level == 0 ? kBits : shift(level - 1);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE static constexpr unsigned digit(Key<Value> key, unsigned level) {
    const Key<Value> mask = (Key<Value>{1} << (shift_before(level) - shift(level))) - 1;
    return static_cast<unsigned>((key >> shift(level)) & mask);
  }
  /// Whether the digits above are those of `known`.
  [[nodiscard]] GTOPK_HOST_DEVICE static constexpr bool agrees(Key<Value> key, Key<Value> known,
                                                               unsigned level) {
    return (key >> shift_before(level)) == (known >> shift_before(level));
  }
};

/// Counts entries by a digit of their keys; zeros never.
template <class Source, class Value>
struct Histogram {
  struct Shared {
    std::uint32_t bins[kBins];
  };

  Source source;
  Cutoff<Value>* cutoff;
  std::uint64_t* bins;  // kBins, zeros
  unsigned level;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (cutoff->searching == 0) {
      return;
    }
    const Key<Value> known = cutoff->key;
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < kBins; bin += kThreads) {
        shared.bins[bin] = 0;
      }
    });
    for (std::uint64_t tile = block.number(); tile < source.tiles(); tile += block.count()) {
      const auto view = source.open(tile);
      block.each([&](unsigned thread) {
        for (unsigned i = thread; i < view.size; i += kThreads) {
          const Key<Value> key = magnitude_key(view.value(i));
          if (!is_finite_key<Value>(key)) {
            cutoff->finite = 0;
          }
          if (key != 0 && Digits<Value>::agrees(key, known, level)) {
            add(shared.bins[Digits<Value>::digit(key, level)], std::uint32_t{1});
          }
        }
      });
    }
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < kBins; bin += kThreads) {
        if (shared.bins[bin] != 0) {
          add(bins[bin], std::uint64_t{shared.bins[bin]});
        }
      }
    });
  }
};

/// Finds the bin of the k-th key. One block.
template <class Value>
struct PickDigit {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
    unsigned bin;
    std::uint64_t above;
  };

  Cutoff<Value>* cutoff;
  std::uint64_t* bins;  // zeros again afterwards
  unsigned level;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    constexpr unsigned kEach = kBins / kThreads;
    const Cutoff<Value> before = block.read(*cutoff);
    if (before.searching == 0) {
      return;
    }
    // Thread after thread from the highest bin down.
    block.each([&](unsigned thread) {
      shared.sums[thread] = 0;
      for (unsigned i = 0; i < kEach; ++i) {
        shared.sums[thread] += bins[kBins - 1 - (thread * kEach + i)];
      }
    });
    const std::uint64_t all = sums_before<kThreads>(block, shared.sums, shared.spare);
    block.each([&](unsigned thread) {
      std::uint64_t above = shared.sums[thread];
      for (unsigned i = 0; i < kEach; ++i) {
        const unsigned bin = kBins - 1 - (thread * kEach + i);
        const std::uint64_t here = bins[bin];
        bins[bin] = 0;
        if (above < before.left && before.left <= above + here) {
          shared.bin = bin;
          shared.above = above;
        }
        above += here;
      }
    });
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *cutoff = next(before, all, shared);
      }
    });
  }

 private:
  GTOPK_HOST_DEVICE Cutoff<Value> next(Cutoff<Value> now, std::uint64_t all,
                                       const Shared& shared) const {
    if (now.finite == 0) {
      now.route = Route::kNowhere;
      now.searching = 0;
    } else if (now.left == 0) {  // nothing is wanted
      now.key = MagnitudeKey<Value>::kInfinity;
      now.searching = 0;
    } else if (level == 0 && all < now.left) {  // every non-zero is
      now.left = 0;
      now.searching = 0;
    } else {
      now.key |= static_cast<Key<Value>>(shared.bin) << Digits<Value>::shift(level);
      now.left -= shared.above;
      now.searching = level + 1 < Digits<Value>::kLevels ? 1 : 0;
    }
    return now;
  }
};

/// Entries of each tile, then of all tiles before it; in the device's memory, tiles + 1 each.
struct TileCounts {
  std::uint64_t* larger = nullptr;
  std::uint64_t* equal = nullptr;
  std::uint64_t* any = nullptr;  ///< that are not zero
};

template <class Source, class Value>
struct CountTiles {
  struct Shared {
    std::uint32_t larger;
    std::uint32_t equal;
    std::uint32_t any;
  };

  Source source;
  const Cutoff<Value>* cutoff;
  TileCounts counts;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (cutoff->route == Route::kNowhere) {
      return;
    }
    const Key<Value> kth = cutoff->key;
    for (std::uint64_t tile = block.number(); tile < source.tiles(); tile += block.count()) {
      const auto view = source.open(tile);
      block.each([&](unsigned thread) {
        if (thread == 0) {
          shared = {};
        }
      });
      block.each([&](unsigned thread) {
        std::uint32_t larger = 0;
        std::uint32_t equal = 0;
        std::uint32_t any = 0;
        for (unsigned i = thread; i < view.size; i += kThreads) {
          const Key<Value> key = magnitude_key(view.value(i));
          larger += key > kth ? 1U : 0U;
          equal += key == kth && key != 0 ? 1U : 0U;
          any += key != 0 ? 1U : 0U;
        }
        add(shared.larger, larger);
        add(shared.equal, equal);
        add(shared.any, any);
      });
      block.each([&](unsigned thread) {
        if (thread == 0) {
          counts.larger[tile] = shared.larger;
          counts.equal[tile] = shared.equal;
          counts.any[tile] = shared.any;
        }
      });
    }
  }
};

/// Adds up what the tiles have counted, and tells the host. One block.
template <class Source, class Value>
struct AddTiles {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
  };

  Source source;
  const Cutoff<Value>* cutoff;
  TileCounts counts;
  Report* report;
  /// The k-th key, for the next selection; may be null.
  std::uint64_t* last;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    Report found;
    if (cutoff->route != Route::kNowhere) {
      const std::uint64_t larger = sum_up(block, shared, counts.larger, source.tiles());
      const std::uint64_t equal = sum_up(block, shared, counts.equal, source.tiles());
      const std::uint64_t any = sum_up(block, shared, counts.any, source.tiles());
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
    for (std::uint64_t tile = block.number(); tile < source.tiles(); tile += block.count()) {
      if (has_entries(tile)) {
        write(block, shared, tile);
      }
    }
  }

 private:
  [[nodiscard]] GTOPK_HOST_DEVICE bool has_entries(std::uint64_t tile) const {
    if (dropped.indices != nullptr) {
      return counts.any[tile] != counts.any[tile + 1];
    }
    return counts.larger[tile] != counts.larger[tile + 1] ||
           (counts.equal[tile] != counts.equal[tile + 1] && counts.equal[tile] < cutoff->left);
  }

  template <class Block>
  GTOPK_HOST_DEVICE void write(Block& block, Shared& shared, std::uint64_t tile) const {
    const auto view = source.open(tile);
    const Key<Value> kth = cutoff->key;
    const std::uint64_t left = cutoff->left;
    block.each([&](unsigned thread) {
      shared.larger.clear(thread);
      shared.equal.clear(thread);
      shared.any.clear(thread);
    });
    block.each([&](unsigned thread) {
      for (unsigned i = thread; i < view.size; i += kThreads) {
        const Key<Value> key = magnitude_key(view.value(i));
        if (key != 0) {
          shared.any.mark(i);
        }
        if (key > kth) {
          shared.larger.mark(i);
        } else if (key == kth && key != 0) {
          shared.equal.mark(i);
        }
      }
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
        const std::uint64_t larger = counts.larger[tile] + shared.larger.rank(i);
        const std::uint64_t equal = counts.equal[tile] + shared.equal.rank(i);
        const std::uint64_t kept_before = larger + least(equal, left);
        if (shared.larger.has(i) || (shared.equal.has(i) && equal < left)) {
          kept.indices[kept_before] = static_cast<Index>(view.index(i));
          kept.values[kept_before] = view.value(i);
        } else if (dropped.indices != nullptr) {
          const std::uint64_t at = counts.any[tile] + shared.any.rank(i) - kept_before;
          dropped.indices[at] = static_cast<Index>(view.index(i));
          dropped.values[at] = view.value(i);
        }
      }
    });
  }
};

/// The launches that find the key, from a cutoff whose `left` and `searching` are set, and bins of
/// zeros; they leave zeros.
template <class Executor, class Source, class Value>
void find_key(Executor& executor, const Source& source, Cutoff<Value>* cutoff,
              std::uint64_t* bins) {
  for (unsigned level = 0; level < Digits<Value>::kLevels; ++level) {
    executor.launch(executor.wide(), Histogram<Source, Value>{source, cutoff, bins, level});
    executor.launch(1, PickDigit<Value>{cutoff, bins, level});
  }
}

/// All launches of a refinement, from a cutoff whose route, `left` and `searching` are set, and
/// bins of zeros.
template <class Executor, class Source, class Value, class Index>
void refine(Executor& executor, const Source& source, Cutoff<Value>* cutoff, std::uint64_t* bins,
            TileCounts counts, Report* report, std::uint64_t* last, EntriesOut<Value, Index> kept,
            EntriesOut<Value, Index> dropped) {
  find_key(executor, source, cutoff, bins);
  executor.launch(executor.wide(), CountTiles<Source, Value>{source, cutoff, counts});
  executor.launch(1, AddTiles<Source, Value>{source, cutoff, counts, report, last});
  executor.launch(executor.wide(),
                  WriteEntries<Source, Value, Index>{source, cutoff, counts, kept, dropped});
}

}  // namespace gtopk::sparse::device
