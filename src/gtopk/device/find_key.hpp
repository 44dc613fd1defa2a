// Sparse, device: the k-th key of a source in the selection order.
//
// A histogram of the keys' highest bits shows in which bin the key is; the next histogram covers
// that bin, and so on until the key is known. The host decides nothing: all launches are enqueued
// at once, and launches with nothing to do return.
//
// A source may be one of several: with_source(use) calls use(source) with the actual one, so that
// `use` needs no branch. The actual source has loose_tiles() and open_loose(tile), which returns a
// view with size and value(i); the order of the tiles does not matter. most_loose_tiles() tells the
// host how many tiles there are at most. The contents of a source must not change meanwhile.
#pragma once

#include <cstdint>

#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/host_device.hpp"

namespace gtopk::sparse::device {

/// The source from which entries are taken.
enum class Route : std::uint32_t { kNowhere, kAll, kCandidates };

/// What is known about the k-th key, in the device's memory.
template <class Value>
struct Cutoff {
  Key<Value> key = 0;
  /// Whether lower bits of the key have yet to be found.
  std::uint32_t searching = 0;
  /// 0 if an element was NaN or infinite.
  std::uint32_t finite = 1;
  Route route = Route::kNowhere;
  /// How many of the entries with that key are kept; the lowest indices come first.
  std::uint64_t left = 0;
  /// The key that the candidates of a sweep reach (0 if there was no sweep), and the number of
  /// candidates.
  Key<Value> reached = 0;
  std::uint32_t candidates = 0;
};

inline constexpr unsigned kDigitBits = 11;
inline constexpr unsigned kBins = 1U << kDigitBits;
/// The number of all bins, including those of a second way to count the same entries, and a sum.
inline constexpr unsigned kAllBins = 2 * kBins + 1;

/// Divides the bits of a key into digits, from the highest on.
template <class Value>
struct Digits {
  static constexpr unsigned kBits = 8 * sizeof(Value) - 1;
  static constexpr unsigned kLevels = (kBits + kDigitBits - 1) / kDigitBits;

  /// The number of bits below the digit.
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
  /// Whether the digits above this level equal the digits of `known`.
  [[nodiscard]] GTOPK_HOST_DEVICE static constexpr bool agrees(Key<Value> key, Key<Value> known,
                                                               unsigned level) {
    return (key >> shift_before(level)) == (known >> shift_before(level));
  }
};

/// The workspace of the search, in the device's memory.
template <class Value>
struct KeyWorkspace {
  Cutoff<Value>* cutoff = nullptr;
  std::uint64_t* bins = nullptr;   ///< kAllBins
  std::uint32_t* ended = nullptr;  ///< for launches that end with a last block (ending.hpp)

  static KeyWorkspace in(Arena& arena) {
    KeyWorkspace workspace;
    workspace.cutoff = arena.take<Cutoff<Value>>(1);
    workspace.bins = arena.take<std::uint64_t>(kAllBins);
    workspace.ended = arena.take<std::uint32_t>(1);
    return workspace;
  }
};

/// Initialises the search. Runs first, as one block.
template <class Value>
struct BeginSearch {
  struct Shared {};

  KeyWorkspace<Value> workspace;
  Cutoff<Value> first;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < kAllBins; bin += kThreads) {
        workspace.bins[bin] = 0;
      }
      if (thread == 0) {
        *workspace.cutoff = first;
        *workspace.ended = 0;
      }
    });
  }
};

/// The cutoff with which the search for the k-th key of a whole source begins.
template <class Value>
[[nodiscard]] Cutoff<Value> search_of(std::uint64_t k) {
  Cutoff<Value> first;
  first.searching = 1;
  first.route = Route::kAll;
  first.left = k;
  return first;
}

/// Gives a key's bin by one of its digits. A zero has no bin. A key whose higher digits differ from
/// the digits of the wanted key has no bin either.
template <class Value>
struct ByDigit {
  static constexpr unsigned kCount = kBins;

  unsigned level;

  template <class Use>
  GTOPK_HOST_DEVICE void operator()(Key<Value> key, Key<Value> known, Use use) const {
    if (key != 0 && Digits<Value>::agrees(key, known, level)) {
      use(Digits<Value>::digit(key, level));
    }
  }
};

/// Counts entries by the bins of their keys.
template <class Source, class Value, class By = ByDigit<Value>>
struct Histogram {
  struct Shared {
    std::uint32_t bins[By::kCount];
  };

  Source source;
  Cutoff<Value>* cutoff;
  std::uint64_t* bins;  // By::kCount numbers, initially zeros
  By by;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    source.with_source([&](const auto& entries) { count(block, shared, entries); });
  }

 private:
  template <class Block, class Entries>
  GTOPK_HOST_DEVICE void count(Block& block, Shared& shared, const Entries& entries) const {
    const std::uint64_t tiles = entries.loose_tiles();
    if (cutoff->searching == 0 || block.number() >= tiles) {
      return;
    }
    const Key<Value> known = cutoff->key;
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < By::kCount; bin += kThreads) {
        shared.bins[bin] = 0;
      }
    });
    for (std::uint64_t tile = block.number(); tile < tiles; tile += block.count()) {
      const auto view = entries.open_loose(tile);
      block.each([&](unsigned thread) {
        each_loaded(
            thread, view.size, [&](std::size_t i) { return magnitude_key(view.value(i)); },
            [&](unsigned, Key<Value> key) {
              if (!is_finite_key<Value>(key)) {
                clear(cutoff->finite);
              }
              by(key, known, [&](unsigned bin) { add(shared.bins[bin], std::uint32_t{1}); });
            });
      });
    }
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < By::kCount; bin += kThreads) {
        if (shared.bins[bin] != 0) {
          add(bins[bin], std::uint64_t{shared.bins[bin]});
        }
      }
    });
  }
};

/// Finds the bin of the k-th key. Runs as one block.
template <class Value>
struct PickDigit {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
    unsigned bin;
    std::uint64_t above;
  };

  Cutoff<Value>* cutoff;
  std::uint64_t* bins;  // are zeros again afterwards
  unsigned level;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    constexpr unsigned kEach = kBins / kThreads;
    const Cutoff<Value> before = block.read(*cutoff);
    if (before.searching == 0) {
      return;
    }
    // The threads take the bins in descending order.
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
    } else if (now.left == 0) {  // no entry is wanted
      now.key = MagnitudeKey<Value>::kInfinity;
      now.searching = 0;
    } else if (level == 0 && all < now.left) {  // every nonzero entry is wanted
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

/// Makes the step that searches for one digit of the key; `then`, a kernel of one block, follows
/// it.
template <class Source, class Value, class Then = Nothing>
[[nodiscard]] auto find_digit(const Source& source, const KeyWorkspace<Value>& workspace,
                              unsigned level, const Then& then = {}) {
  return Step{source.most_loose_tiles(),
              Histogram<Source, Value>{source, workspace.cutoff, workspace.bins, {level}},
              InTurn{PickDigit<Value>{workspace.cutoff, workspace.bins, level}, then}};
}

/// Launches the search for the key, from a cutoff whose `left` and `searching` are set; `then`, a
/// kernel of one block, follows it. The digits before `first` have been found already.
template <class Executor, class Source, class Value, class Then = Nothing>
void find_key(Executor& executor, const Source& source, const KeyWorkspace<Value>& workspace,
              const Then& then = {}, unsigned first = 0) {
  constexpr unsigned kLast = Digits<Value>::kLevels - 1;
  for (unsigned level = first; level < kLast; ++level) {
    launch(executor, find_digit(source, workspace, level), workspace.ended);
  }
  launch(executor, find_digit(source, workspace, kLast, then), workspace.ended);
}

}  // namespace gtopk::sparse::device
