// Sparse, device room: entries become a coded message (wire/coded.cpp, wire/rice.hpp), byte for
// byte the CPU's. A block of threads takes a block of 256 entries: first what it needs is counted,
// then each writes its bits where the sums say.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/device_lists.hpp"
#include "src/gtopk/device/bits.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/lists.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/gtopk/device/stored_values.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/wire/rice_rules.hpp"

namespace gtopk::sparse::device {

/// What encoding works in; in the device's memory.
struct EncodeRoom {
  std::uint64_t* low_at = nullptr;   ///< low bits before each block; the last one: all
  std::uint64_t* high_at = nullptr;  ///< high bits before each block; the last one: all
  std::uint32_t* ended = nullptr;    ///< of the launch that ends with a last block (ending.hpp)

  static EncodeRoom in(Room& memory, std::uint64_t most) {
    const std::uint64_t blocks = rice::blocks_of(most);
    EncodeRoom room;
    room.low_at = memory.take<std::uint64_t>(blocks + 1);
    room.high_at = memory.take<std::uint64_t>(blocks + 1);
    room.ended = memory.take<std::uint32_t>(1);
    return room;
  }
};

/// Before anything else.
struct ClearWords {
  struct Shared {};

  std::uint32_t* words;
  std::uint64_t count;
  std::uint32_t* ended;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    each_of(block, count, [&](std::uint64_t i) { words[i] = 0; });
    block.each([&](unsigned thread) {
      if (block.number() == 0 && thread == 0) {
        *ended = 0;
      }
    });
  }
};

/// A list of an unknown size, and the message to be.
template <class Value, class Index>
struct Encoding {
  Entries<Value, Index> list;
  const std::uint64_t* count = nullptr;
  std::uint64_t most = 0;  ///< of *count
  ListFormat format = ListFormat::kLossless;
  std::byte* bytes = nullptr;  ///< aligned to 8
  EncodeRoom room;

  [[nodiscard]] GTOPK_HOST_DEVICE unsigned size_of(std::uint64_t block) const {
    return static_cast<unsigned>(least<std::uint64_t>(rice::kBlock, *count - block * rice::kBlock));
  }
  /// Indices left out before entry i.
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t gap(std::uint64_t i) const {
    return list.indices[i] - next(i);
  }
  /// The lowest index that entry i may have.
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t next(std::uint64_t i) const {
    return i == 0 ? 0 : list.indices[i - 1] + std::uint64_t{1};
  }
  /// Where the parameters are.
  [[nodiscard]] GTOPK_HOST_DEVICE std::byte* parameters() const {
    return bytes + value_bytes<Value>(format, *count);
  }
};

/// Writes values and parameters, and counts the bits of each block.
template <class Value, class Index>
struct MeasureBlocks {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
    typename StoredValues<Value>::Shared values;
  };

  Encoding<Value, Index> to;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t count = *to.count;
    const StoredValues<Value> values{to.format, to.bytes, count};
    for (std::uint64_t i = block.number(); i < rice::blocks_of(count); i += block.count()) {
      const std::uint64_t first = i * rice::kBlock;
      const unsigned size = to.size_of(i);
      const std::uint64_t reach =
          to.list.indices[first + size - 1] + std::uint64_t{1} - to.next(first);
      const std::uint32_t bits = rice::parameter(reach, size);
      block.each([&](unsigned thread) {
        shared.sums[thread] = thread < size ? (to.gap(first + thread) >> bits) + 1 : 0;
      });
      const std::uint64_t high = sums_before<kThreads>(block, shared.sums, shared.spare);
      block.each([&](unsigned thread) {
        if (thread == 0) {
          to.parameters()[i] = static_cast<std::byte>(bits);
          to.room.low_at[i] = std::uint64_t{bits} * size;
          to.room.high_at[i] = high;
        }
      });
      values.write(block, shared.values, to.list.values, first);
    }
  }
};

/// Where each block's bits begin, and how long the message is. One block.
template <class Value, class Index>
struct AddBits {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
  };

  Encoding<Value, Index> to;
  ClosingReport* report;  ///< may lie in pinned memory

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t count = *to.count;
    const std::uint64_t blocks = rice::blocks_of(count);
    const std::uint64_t low = sum_up(block, shared, to.room.low_at, blocks);
    const std::uint64_t high = sum_up(block, shared, to.room.high_at, blocks);
    block.each([&](unsigned thread) {
      if (thread == 0) {
        report->kept = count;
        report->bytes = value_bytes<Value>(to.format, count) + blocks + rice::bytes_of(low) +
                        rice::bytes_of(high);
      }
    });
  }
};

template <class Value, class Index>
struct WriteBits {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
    BitStage<(rice::kWordBits - 1) * rice::kBlock / 32 + 1> low;
    BitStage<3 * rice::kBlock / 32 + 2> high;  // fewer than 3 bits an entry (rice::parameter)
  };

  Encoding<Value, Index> to;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t blocks = rice::blocks_of(*to.count);
    auto* const words = reinterpret_cast<std::uint32_t*>(to.bytes);
    const std::byte* const parameters = to.parameters();
    const std::uint64_t all_low = 8 * static_cast<std::uint64_t>(parameters + blocks - to.bytes);
    const std::uint64_t all_high = all_low + 8 * rice::bytes_of(to.room.low_at[blocks]);
    for (std::uint64_t i = block.number(); i < blocks; i += block.count()) {
      const std::uint64_t first = i * rice::kBlock;
      const unsigned size = to.size_of(i);
      const auto bits = static_cast<std::uint32_t>(parameters[i]);
      const std::uint64_t low = all_low + to.room.low_at[i];
      const std::uint64_t high = all_high + to.room.high_at[i];
      block.each([&](unsigned thread) {
        shared.low.clear(thread);
        shared.high.clear(thread);
        shared.sums[thread] = thread < size ? (to.gap(first + thread) >> bits) + 1 : 0;
      });
      const std::uint64_t of_high = sums_before<kThreads>(block, shared.sums, shared.spare);
      block.each([&](unsigned thread) {
        if (thread < size) {
          const std::uint64_t gap = to.gap(first + thread);
          shared.low.put(low, low + std::uint64_t{bits} * thread, gap & rice::low_mask(bits), bits);
          shared.high.put(high, high + shared.sums[thread] + (gap >> bits), 1, 1);
        }
      });
      block.each([&](unsigned thread) {
        shared.low.write(thread, low, low + std::uint64_t{bits} * size, words);
        shared.high.write(thread, high, high + of_high, words);
      });
    }
  }
};

/// All launches on a list of *count entries; what Codec::encode() does (wire/codec.hpp), without
/// the header. The first `room_bytes` of the message, a multiple of 4, are overwritten: as many as
/// it may have (Codec::message_bytes()).
template <class Value, class Index, class Executor>
void encode(Executor& executor, const Encoding<Value, Index>& to, std::uint64_t room_bytes,
            ClosingReport* report) {
  executor.launch(executor.wide(), ClearWords{reinterpret_cast<std::uint32_t*>(to.bytes),
                                              room_bytes / 4, to.room.ended});
  launch_with_last(executor, rice::blocks_of(to.most), MeasureBlocks<Value, Index>{to},
                   AddBits<Value, Index>{to, report}, to.room.ended);
  executor.launch(blocks_for(executor, rice::blocks_of(to.most)), WriteBits<Value, Index>{to});
}

}  // namespace gtopk::sparse::device
