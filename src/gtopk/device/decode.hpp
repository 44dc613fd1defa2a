// Sparse, device room: a coded list (wire/coded.cpp, wire/rice.hpp) becomes entries. Where an
// entry's bits are depends on all before it, so sums come first: of the low bits of blocks, of the
// ones of tiles of the high bits, and of the gaps of blocks. All that the CPU checks is checked: a
// message that encode() (encode.hpp) would not have written is damaged.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/device_lists.hpp"
#include "src/gtopk/device/bits.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/room.hpp"
#include "src/gtopk/device/stored_values.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/wire/rice_rules.hpp"

namespace gtopk::sparse::device {

/// What is known of a message between launches.
struct DecodeState {
  std::uint64_t high_begin;
  std::uint64_t high_end;
  std::uint32_t good;   ///< read by launches behind the one that writes it
  std::uint32_t wrong;  ///< written by many blocks, read by the next launch
  std::uint32_t ended;  ///< of launches that end with a last block (ending.hpp)
};

/// What decoding works in; in the device's memory.
struct DecodeRoom {
  DecodeState* state = nullptr;
  std::uint64_t* low_at = nullptr;       ///< low bits before each block of entries
  std::uint64_t* ones_before = nullptr;  ///< before each tile of the high bits
  std::uint64_t* ones = nullptr;         ///< where each entry's one is
  std::uint64_t* starts = nullptr;       ///< lowest index that each block may have

  static std::uint64_t tiles_of(std::uint64_t bytes) {
    return bytes / (std::uint64_t{8} * kThreads) + 2;
  }

  static DecodeRoom in(Room& memory, std::uint64_t count, std::uint64_t bytes) {
    const std::uint64_t blocks = rice::blocks_of(count);
    DecodeRoom room;
    room.state = memory.take<DecodeState>(1);
    room.low_at = memory.take<std::uint64_t>(blocks + 1);
    room.ones_before = memory.take<std::uint64_t>(tiles_of(bytes) + 1);
    room.ones = memory.take<std::uint64_t>(count);
    room.starts = memory.take<std::uint64_t>(blocks + 1);
    return room;
  }
};

/// A message without its header: at least one entry, and the bytes of its values. Readable up to a
/// multiple of 8 bytes, to which it is aligned.
struct CodedBody {
  const std::byte* bytes = nullptr;
  std::uint64_t size = 0;
  std::uint64_t count = 0;
  ListFormat format = ListFormat::kLossless;
  std::uint64_t value_bytes = 0;

  [[nodiscard]] GTOPK_HOST_DEVICE const std::uint64_t* words() const {
    return reinterpret_cast<const std::uint64_t*>(bytes);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint32_t parameter(std::uint64_t block) const {
    return static_cast<std::uint32_t>(bytes[value_bytes + block]);
  }
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t blocks() const { return rice::blocks_of(count); }
  /// Entries of a block.
  [[nodiscard]] GTOPK_HOST_DEVICE unsigned size_of(std::uint64_t block) const {
    return static_cast<unsigned>(least<std::uint64_t>(rice::kBlock, count - block * rice::kBlock));
  }
  /// Where the low bits begin.
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint64_t low_begin() const {
    return 8 * (value_bytes + blocks());
  }
};

struct SumsShared {
  std::uint64_t sums[kThreads];
  std::uint64_t spare[kThreads];
  std::uint32_t wrong;
};

/// Where the low bits of blocks and the high bits are. One block.
struct ReadParameters {
  using Shared = SumsShared;

  CodedBody body;
  DecodeRoom room;
  std::uint64_t* sound;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t blocks = body.blocks();
    const bool has_parameters = body.size >= body.value_bytes + blocks;
    block.each([&](unsigned thread) {
      if (thread == 0) {
        shared.wrong = has_parameters ? 0 : 1;
      }
    });
    block.each([&](unsigned thread) {
      for (std::uint64_t i = thread; i < blocks; i += kThreads) {
        const std::uint32_t bits = has_parameters ? body.parameter(i) : 0;
        if (bits >= rice::kWordBits) {
          set_bits(shared.wrong, 1);
        }
        room.low_at[i] = std::uint64_t{bits % rice::kWordBits} * body.size_of(i);
      }
    });
    const std::uint64_t low_bits = sum_up(block, shared, room.low_at, blocks);
    block.each([&](unsigned thread) {
      if (thread != 0) {
        return;
      }
      const std::uint64_t end = 8 * body.size;
      const std::uint64_t high = body.low_begin() + 8 * rice::bytes_of(low_bits);
      const auto unused = static_cast<std::uint32_t>(8 * rice::bytes_of(low_bits) - low_bits);
      const bool good =
          shared.wrong == 0 && high <= end && bits_at(body.words(), high - unused, unused) == 0;
      *room.state = {high, end, good ? 1U : 0U, 0, 0};
      if (!good) {
        *sound = 0;
      }
    });
  }
};

/// A tile of the high bits is one word for each thread. Counts its ones, or writes where they are.
template <bool Writes>
struct FindOnes {
  struct Shared {
    std::uint32_t sums[kThreads];
    std::uint32_t spare[kThreads];
  };

  CodedBody body;
  DecodeRoom room;
  std::uint64_t tiles;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (room.state->good == 0) {
      return;
    }
    const BitStream high{body.words(), room.state->high_begin, room.state->high_end};
    for (std::uint64_t tile = block.number(); tile < tiles; tile += block.count()) {
      const std::uint64_t first = high.first_word() + tile * kThreads;
      block.each(
          [&](unsigned thread) { shared.sums[thread] = count_bits(high.word(first + thread)); });
      const std::uint32_t all = sums_before<kThreads>(block, shared.sums, shared.spare);
      block.each([&](unsigned thread) {
        if constexpr (Writes) {
          std::uint64_t* one = room.ones + room.ones_before[tile] + shared.sums[thread];
          for (std::uint64_t word = high.word(first + thread); word != 0; word &= word - 1) {
            *one++ = 64 * (first + thread) + lowest_bit(word) - high.begin;
          }
        } else if (thread == 0) {
          room.ones_before[tile] = all;
        }
      });
    }
  }
};

/// There is a one for each entry, the last of them in the last byte. One block.
struct AddOnes {
  using Shared = SumsShared;

  CodedBody body;
  DecodeRoom room;
  std::uint64_t tiles;
  std::uint64_t* sound;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (room.state->good == 0) {
      return;
    }
    const std::uint64_t ones = sum_up(block, shared, room.ones_before, tiles);
    block.each([&](unsigned thread) {
      if (thread == 0 && (ones != body.count || body.bytes[body.size - 1] == std::byte{0})) {
        room.state->good = 0;
        *sound = 0;
      }
    });
  }
};

/// The gap in front of an entry and the entry, as a number of indices: 0 if it exceeds d.
[[nodiscard]] GTOPK_HOST_DEVICE inline std::uint64_t step_of(const CodedBody& body,
                                                             const DecodeRoom& room,
                                                             std::uint64_t d, std::uint64_t i) {
  const std::uint64_t block = i / rice::kBlock;
  const std::uint32_t bits = body.parameter(block);
  const std::uint64_t zeros = room.ones[i] - (i == 0 ? 0 : room.ones[i - 1] + 1);
  if (zeros > d >> bits) {  // the shift below would lose bits
    return 0;
  }
  const std::uint64_t at = body.low_begin() + room.low_at[block] + bits * (i % rice::kBlock);
  const std::uint64_t gap = (zeros << bits) | bits_at(body.words(), at, bits);
  return gap < d ? gap + 1 : 0;
}

/// How many indices the entries of each block go on, and whether the encoder would have chosen that
/// block's parameter.
struct AddGaps {
  using Shared = SumsShared;

  CodedBody body;
  DecodeRoom room;
  std::uint64_t d;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (room.state->good == 0) {
      return;
    }
    for (std::uint64_t i = block.number(); i < body.blocks(); i += block.count()) {
      const unsigned size = body.size_of(i);
      block.each([&](unsigned thread) {
        shared.sums[thread] = thread < size ? step_of(body, room, d, i * rice::kBlock + thread) : 0;
        if (thread < size && shared.sums[thread] == 0) {
          set_bits(room.state->wrong, 1);
        }
      });
      const std::uint64_t sum = sums_before<kThreads>(block, shared.sums, shared.spare);
      block.each([&](unsigned thread) {
        if (thread == 0) {
          room.starts[i] = least(sum, d + 1);
          if (sum < size || body.parameter(i) != rice::parameter(sum, size)) {
            set_bits(room.state->wrong, 1);
          }
        }
      });
    }
  }
};

/// Where each block begins, and whether all of them end below d. One block.
struct AddStarts {
  using Shared = SumsShared;

  CodedBody body;
  DecodeRoom room;
  std::uint64_t d;
  std::uint64_t* sound;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (room.state->good == 0) {
      return;
    }
    const std::uint64_t end = sum_up_to(block, shared, room.starts, body.blocks(), d + 1);
    block.each([&](unsigned thread) {
      if (thread == 0 && (end > d || room.state->wrong != 0)) {
        room.state->good = 0;
        *sound = 0;
      }
    });
  }
};

template <class Value, class Index>
struct WriteDecoded {
  struct Shared {
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
    std::uint32_t valid;
    std::uint32_t large;
    std::uint32_t small;
  };

  CodedBody body;
  DecodeRoom room;
  std::uint64_t d;
  EntriesOut<Value, Index> list;
  std::uint64_t* sound;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (room.state->good == 0) {
      return;
    }
    const StoredValues<Value> values{body.format, const_cast<std::byte*>(body.bytes), body.count};
    for (std::uint64_t i = block.number(); i < body.blocks(); i += block.count()) {
      const unsigned size = body.size_of(i);
      const std::uint64_t first = i * rice::kBlock;
      block.each([&](unsigned thread) {
        shared.sums[thread] = thread < size ? step_of(body, room, d, first + thread) : 0;
        if (thread == 0) {
          shared.valid = 1;
          shared.large = 0;
          shared.small = 0;
        }
      });
      sums_before<kThreads>(block, shared.sums, shared.spare);
      block.each([&](unsigned thread) {
        if (thread >= size) {
          return;
        }
        const std::uint64_t at = first + thread;
        const std::uint64_t step = step_of(body, room, d, at);
        list.indices[at] = static_cast<Index>(room.starts[i] + shared.sums[thread] + step - 1);
        if (!values.read(at, list.values[at])) {
          shared.valid = 0;
        }
        if (values.is_large(at)) {
          shared.large = 1;
        }
        if (values.is_small(at)) {
          shared.small = 1;
        }
      });
      block.each([&](unsigned thread) {
        if (thread == 0 && (shared.valid == 0 || shared.large == 0 || shared.small == 0)) {
          *sound = 0;
        }
      });
    }
  }
};

/// All launches; what Codec::decode() does (wire/codec.hpp). d < 2^54. `sound`: 1 beforehand, may
/// lie in pinned memory; set to 0 if the message is damaged, and the entries mean nothing then.
template <class Value, class Index, class Executor>
void decode(Executor& executor, CodedBody body, std::uint64_t d, const DecodeRoom& room,
            EntriesOut<Value, Index> list, std::uint64_t* sound) {
  body.value_bytes = value_bytes<Value>(body.format, body.count);
  const std::uint64_t tiles = DecodeRoom::tiles_of(body.size);
  std::uint32_t* const ended = &room.state->ended;
  executor.launch(1, ReadParameters{body, room, sound});
  launch_with_last(executor, tiles, FindOnes<false>{body, room, tiles},
                   AddOnes{body, room, tiles, sound}, ended);
  executor.launch(blocks_for(executor, tiles), FindOnes<true>{body, room, tiles});
  launch_with_last(executor, body.blocks(), AddGaps{body, room, d}, AddStarts{body, room, d, sound},
                   ended);
  executor.launch(blocks_for(executor, body.blocks()),
                  WriteDecoded<Value, Index>{body, room, d, list, sound});
}

}  // namespace gtopk::sparse::device
