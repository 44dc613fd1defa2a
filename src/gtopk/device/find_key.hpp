// Sparse, device room: the k-th key of a source in the selection order.
//
// A histogram of the keys' highest bits says in which bin it is; the next one looks into that bin,
// until the key is known. The host decides nothing: all launches are enqueued at once, and those
// with nothing to do return.
//
// A source says what it is with with_source(use), which calls use(source) with one of those that it
// may be, so that no branch is left behind. That one has loose_tiles() and open_loose(tile), a view
// with size and value(i); the order of the tiles does not matter. The host knows how many there are
// at most: most_loose_tiles(). What a source is made of must not change meanwhile.
#pragma once

#include <cstdint>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/room.hpp"
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

/// What the search works in; in the device's memory.
template <class Value>
struct KeyWorkspace {
  Cutoff<Value>* cutoff = nullptr;
  std::uint64_t* bins = nullptr;   ///< kBins
  std::uint32_t* ended = nullptr;  ///< of launches that end with a last block (ending.hpp)

  static KeyWorkspace in(Room& memory) {
    KeyWorkspace room;
    room.cutoff = memory.take<Cutoff<Value>>(1);
    room.bins = memory.take<std::uint64_t>(kBins);
    room.ended = memory.take<std::uint32_t>(1);
    return room;
  }
};

/// Before anything else. One block.
template <class Value>
struct BeginSearch {
  struct Shared {};

  KeyWorkspace<Value> room;
  Cutoff<Value> first;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      for (unsigned bin = thread; bin < kBins; bin += kThreads) {
        room.bins[bin] = 0;
      }
      if (thread == 0) {
        *room.cutoff = first;
        *room.ended = 0;
      }
    });
  }
};

/// A cutoff with which the search for the k-th key of all of a source begins.
template <class Value>
[[nodiscard]] Cutoff<Value> search_of(std::uint64_t k) {
  Cutoff<Value> first;
  first.searching = 1;
  first.route = Route::kAll;
  first.left = k;
  return first;
}

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
      for (unsigned bin = thread; bin < kBins; bin += kThreads) {
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
                cutoff->finite = 0;
              }
              if (key != 0 && Digits<Value>::agrees(key, known, level)) {
                add(shared.bins[Digits<Value>::digit(key, level)], std::uint32_t{1});
              }
            });
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

/// One of the launches that find the key; `then`, of one block, follows it.
template <class Executor, class Source, class Value, class Then>
void find_digit(Executor& executor, const Source& source, const KeyWorkspace<Value>& room,
                unsigned level, const Then& then) {
  executor.launch(
      blocks_for(executor, source.most_loose_tiles()),
      WithLast{Histogram<Source, Value>{source, room.cutoff, room.bins, level},
               InTurn{PickDigit<Value>{room.cutoff, room.bins, level}, then}, room.ended});
}

/// The launches that find the key, from a cutoff whose `left` and `searching` are set; `then`, of
/// one block, follows them. `first`: the digits before have been found.
template <class Executor, class Source, class Value, class Then = Nothing>
void find_key(Executor& executor, const Source& source, const KeyWorkspace<Value>& room,
              const Then& then = {}, unsigned first = 0) {
  constexpr unsigned kLast = Digits<Value>::kLevels - 1;
  for (unsigned level = first; level < kLast; ++level) {
    find_digit(executor, source, room, level, Nothing{});
  }
  find_digit(executor, source, room, kLast, then);
}

}  // namespace gtopk::sparse::device
