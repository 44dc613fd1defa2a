// Sparse, device room: the values of a list become what a message can hold, and what that changes
// is written as another list: Codec::round() (wire/codec.hpp). Entries that become zero leave the
// list.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/detached.hpp"
#include "gtopk/device_lists.hpp"
#include "src/gtopk/device/bits.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/lists.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/gtopk/device/stored_values.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"

namespace gtopk::sparse::device {

/// What is known of a list between launches.
struct RoundState {
  std::uint64_t count;      ///< before rounding; 0 if it is not finite
  std::uint64_t kept;       ///< after it
  std::uint64_t first_bad;  ///< of `int8`: the first whole block that has a value rounded to zero
  std::uint32_t finite;
  std::uint32_t ended;  ///< of launches that end with a last block (ending.hpp)
};

/// What rounding works in; in the device's memory.
struct RoundRoom {
  RoundState* state = nullptr;
  std::int16_t* exponents = nullptr;     ///< of `int8`, for each entry
  double* levels = nullptr;              ///< of `sign` and `2bit`: mean, smaller, larger, by tiles
  std::uint64_t* kept_before = nullptr;  ///< each tile of kThreads entries
  std::uint64_t* lost_before = nullptr;

  static RoundRoom in(Room& memory, std::uint64_t most) {
    const std::uint64_t tiles = rice::blocks_of(most);
    RoundRoom room;
    room.state = memory.take<RoundState>(1);
    room.exponents = memory.take<std::int16_t>(most);
    room.levels = memory.take<double>(3 * tiles);
    room.kept_before = memory.take<std::uint64_t>(tiles + 1);
    room.lost_before = memory.take<std::uint64_t>(tiles + 1);
    return room;
  }
};

/// `sign` and `2bit`: the levels of each block, by one thread, which adds up in the CPU's order.
template <class Value, class Index>
struct FindLevels {
  struct Shared {};

  ListFormat format;
  Entries<Value, Index> list;  ///< of any size
  RoundRoom room;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    each_of(block, rice::blocks_of(room.state->count), [&](std::uint64_t tile) {
      format == ListFormat::kSign ? find<1>(tile) : find<2>(tile);
    });
  }

 private:
  template <std::size_t Levels>
  GTOPK_HOST_DEVICE void find(std::uint64_t tile) const {
    using Rules = LevelRules<Levels>;
    const std::uint64_t first = tile * Rules::kBlock;
    const std::uint64_t size = least<std::uint64_t>(Rules::kBlock, room.state->count - first);
    const typename Rules::template Block<Value> found(list.values + first, size);
    double* const levels = room.levels + 3 * tile;
    levels[0] = found.mean();
    levels[1] = found.smaller();
    levels[2] = found.larger();
  }
};

/// How long the list is that earlier launches have made. One block.
struct BeginRounding {
  struct Shared {};

  RoundState* state;
  const SelectionReport* made;  ///< may lie in pinned memory

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        const std::uint64_t count = made->finite != 0 ? made->kept : 0;
        *state = {count, count, ~std::uint64_t{0}, 1, 0};
      }
    });
  }
};

/// `int8`: the exponents of blocks, as if no value became zero.
template <class Value, class Index>
struct FindExponents {
  using Shared = typename StoredValues<Value>::Shared;

  Entries<Value, Index> list;  ///< of any size
  RoundRoom room;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t count = room.state->count;
    const std::uint64_t tiles = rice::blocks_of(count);
    for (std::uint64_t tile = block.number(); tile < tiles; tile += block.count()) {
      const std::uint64_t first = tile * kInt8Block;
      const auto size = static_cast<unsigned>(least<std::uint64_t>(kInt8Block, count - first));
      block.each([&](unsigned thread) {
        shared.keys[thread] = thread < size ? magnitude_key(list.values[first + thread]) : 0;
      });
      const auto largest = static_cast<Key<Value>>(largest_of(block, shared.keys));
      const int e = int8_exponent<Value>(largest);
      block.each([&](unsigned thread) {
        if (thread < size) {
          room.exponents[first + thread] = static_cast<std::int16_t>(e);
          if (tile + 1 < tiles && Int8Scale<Value>(e).quotient(list.values[first + thread]) == 0) {
            lower(room.state->first_bad, tile);
          }
        }
      });
    }
  }
};

/// `int8`: the exponents from the first block on that has a value rounded to zero. Such a value
/// leaves room for another one in its block, so where a block begins depends on all before it. One
/// block of threads, which takes one block of entries after the other: rarely needed, as values of
/// a selection seldom differ so much.
template <class Value, class Index>
struct WalkExponents {
  struct Shared {
    std::uint32_t sums[kThreads];
    std::uint32_t spare[kThreads];
    std::uint32_t full;    ///< of a chunk: the thread whose entry is the block's last
    std::uint32_t widens;  ///< the first thread whose entry has a larger exponent
  };

  Entries<Value, Index> list;  ///< of any size
  RoundRoom room;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t count = room.state->count;
    if (room.state->first_bad > count / kInt8Block) {
      return;
    }
    for (std::uint64_t begin = room.state->first_bad * kInt8Block; begin < count;) {
      int e = exponent_at(begin);
      std::uint64_t end = begin;
      std::uint32_t left = 0;
      while (end < count && left < kInt8Block) {
        const auto wanted = static_cast<std::uint32_t>(kInt8Block - left);
        const std::uint32_t here = look(block, shared, end, count, e, wanted);
        const std::uint32_t full = block.read(shared.full);
        const std::uint32_t widens = block.read(shared.widens);
        if (full < kThreads) {
          end += full + 1;
          left = kInt8Block;
        } else if (widens < kThreads) {
          end += widens + 1;
          e = exponent_at(end - 1);
          left = count_left(block, shared, begin, end, e);
        } else {
          end = least<std::uint64_t>(end + kThreads, count);
          left += here;
        }
      }
      block.each([&](unsigned thread) {
        for (std::uint64_t i = begin + thread; i < end; i += kThreads) {
          room.exponents[i] = static_cast<std::int16_t>(e);
        }
      });
      begin = end;
    }
  }

 private:
  [[nodiscard]] GTOPK_HOST_DEVICE int exponent_at(std::uint64_t i) const {
    return int8_exponent<Value>(magnitude_key(list.values[i]));
  }
  [[nodiscard]] GTOPK_HOST_DEVICE bool remains(std::uint64_t i, int e) const {
    return Int8Scale<Value>(e).quotient(list.values[i]) != 0;
  }

  /// Looks at an entry for each thread, from `first` on: finds the one that is the `wanted`-th to
  /// remain with this exponent, and the first that has a larger one; only what comes first counts.
  /// Returns how many remain.
  template <class Block>
  GTOPK_HOST_DEVICE std::uint32_t look(Block& block, Shared& shared, std::uint64_t first,
                                       std::uint64_t count, int e, std::uint32_t wanted) const {
    constexpr std::uint32_t kWidens = 1U << 16U;
    const auto marks_of = [=, this](unsigned thread) -> std::uint32_t {
      const std::uint64_t i = first + thread;
      return i >= count ? 0 : (remains(i, e) ? 1 : 0) + (exponent_at(i) > e ? kWidens : 0);
    };
    block.each([&](unsigned thread) {
      shared.sums[thread] = marks_of(thread);
      if (thread == 0) {
        shared.full = kThreads;
        shared.widens = kThreads;
      }
    });
    const std::uint32_t all = sums_before<kThreads>(block, shared.sums, shared.spare);
    block.each([&](unsigned thread) {
      const std::uint32_t before = shared.sums[thread];
      const std::uint32_t mine = marks_of(thread);
      if (before >= kWidens || mine == 0) {
        return;
      }
      if (mine >= kWidens) {
        shared.widens = thread;
      } else if (before + 1 == wanted) {
        shared.full = thread;
      }
    });
    return all % kWidens;
  }

  template <class Block>
  GTOPK_HOST_DEVICE std::uint32_t count_left(Block& block, Shared& shared, std::uint64_t begin,
                                             std::uint64_t end, int e) const {
    block.each([&](unsigned thread) {
      std::uint32_t sum = 0;
      for (std::uint64_t i = begin + thread; i < end; i += kThreads) {
        sum += remains(i, e) ? 1 : 0;
      }
      shared.sums[thread] = sum;
    });
    return sums_before<kThreads>(block, shared.sums, shared.spare);
  }
};

/// Counts what rounding keeps and loses of each tile, or writes it.
template <class Value, class Index, bool Writes>
struct RoundTiles {
  struct Shared {
    std::uint32_t sums[kThreads];
    std::uint32_t spare[kThreads];
  };

  ListFormat format;
  bool zeros_are_lost;
  Entries<Value, Index> list;  ///< of any size
  RoundRoom room;
  EntriesOut<Value, Index> kept;
  EntriesOut<Value, Index> lost;  ///< null: nobody wants it

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    constexpr std::uint32_t kLost = 1U << 16U;
    const std::uint64_t count = room.state->count;
    for (std::uint64_t tile = block.number(); tile < rice::blocks_of(count);
         tile += block.count()) {
      const std::uint64_t first = tile * kThreads;
      const auto size = static_cast<unsigned>(least<std::uint64_t>(kThreads, count - first));
      block.each([&](unsigned thread) {
        std::uint32_t marks = 0;
        if (thread < size) {
          const Value value = value_of(first + thread);
          marks = (value != 0 ? 1 : 0) + (is_lost(first + thread, value) ? kLost : 0);
          if (!Writes && !is_finite_key<Value>(magnitude_key(value))) {
            room.state->finite = 0;
          }
        }
        shared.sums[thread] = marks;
      });
      const std::uint32_t all = sums_before<kThreads>(block, shared.sums, shared.spare);
      block.each([&](unsigned thread) {
        if constexpr (Writes) {
          if (thread < size) {
            const std::uint32_t before = shared.sums[thread];
            write(first + thread, room.kept_before[tile] + before % kLost,
                  room.lost_before[tile] + before / kLost);
          }
        } else if (thread == 0) {
          room.kept_before[tile] = all % kLost;
          room.lost_before[tile] = all / kLost;
        }
      });
    }
  }

 private:
  [[nodiscard]] GTOPK_HOST_DEVICE Value value_of(std::uint64_t i) const {
    const Value value = list.values[i];
    if (has_levels(format)) {
      const double* const levels = room.levels + i / kThreads * 3;
      const double magnitude = value < 0 ? -value : value;
      const auto level = static_cast<Value>(magnitude > levels[0] ? levels[2] : levels[1]);
      return value < 0 ? -level : level;
    }
    return rounded(format, value, format == ListFormat::kInt8 ? room.exponents[i] : 0);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE bool is_lost(std::uint64_t i, Value value) const {
    return list.values[i] - value != 0 && (value != 0 || zeros_are_lost);
  }
  GTOPK_HOST_DEVICE void write(std::uint64_t i, std::uint64_t at_kept,
                               std::uint64_t at_lost) const {
    const Value value = value_of(i);
    if (value != 0) {
      kept.indices[at_kept] = list.indices[i];
      kept.values[at_kept] = value;
    }
    if (lost.indices != nullptr && is_lost(i, value)) {
      lost.indices[at_lost] = list.indices[i];
      lost.values[at_lost] = list.values[i] - value;
    }
  }
};

/// Adds up what the tiles have counted. One block.
struct AddRounded {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
  };

  RoundRoom room;
  ClosingReport* report;  ///< may lie in pinned memory

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t tiles = rice::blocks_of(room.state->count);
    const std::uint64_t kept = sum_up(block, shared, room.kept_before, tiles);
    const std::uint64_t lost = sum_up(block, shared, room.lost_before, tiles);
    block.each([&](unsigned thread) {
      if (thread == 0) {
        const bool finite = room.state->finite != 0;
        room.state->kept = finite ? kept : 0;
        report->lost = finite ? lost : 0;
        report->finite = finite ? 1 : 0;
      }
    });
  }
};

/// All launches, on a list of up to `most` entries whose length is in the room's state. `kept` and
/// `lost` must have room for all of them, and must not be the list.
template <class Value, class Index, class Executor>
void round(Executor& executor, ListFormat format, bool zeros_are_lost,
           const Entries<Value, Index>& list, std::uint64_t most, const RoundRoom& room,
           EntriesOut<Value, Index> kept, EntriesOut<Value, Index> lost, ClosingReport* report) {
  std::uint32_t* const ended = &room.state->ended;
  const std::uint64_t tiles = rice::blocks_of(most);
  if (format == ListFormat::kInt8) {
    launch_with_last(executor, tiles, FindExponents<Value, Index>{list, room},
                     WalkExponents<Value, Index>{list, room}, ended);
  }
  if (has_levels(format)) {
    executor.launch(blocks_for(executor, tiles), FindLevels<Value, Index>{format, list, room});
  }
  launch_with_last(executor, tiles,
                   RoundTiles<Value, Index, false>{format, zeros_are_lost, list, room, kept, lost},
                   AddRounded{room, report}, ended);
  executor.launch(blocks_for(executor, tiles),
                  RoundTiles<Value, Index, true>{format, zeros_are_lost, list, room, kept, lost});
}

}  // namespace gtopk::sparse::device
