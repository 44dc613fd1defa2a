// Tests of the device room: lists for coded wires, and what the CPU's codecs make of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <random>
#include <vector>

#include "src/gtopk/device/stored_values.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/support/mutate.hpp"

namespace gtopk::sparse::testing {

using CodedBytes = std::vector<std::byte>;

struct Format {
  const char* wire;
  ListFormat format;

  [[nodiscard]] const Codec& codec() const { return codec_registry().find(wire).codec; }
};
inline constexpr Format kFormats[] = {
    {"lossless", ListFormat::kLossless}, {"bf16", ListFormat::kBf16}, {"fp16", ListFormat::kFp16},
    {"int8", ListFormat::kInt8},         {"2bit", ListFormat::k2Bit}, {"sign", ListFormat::kSign}};
inline constexpr Format kInt8Format = kFormats[3];

class OwnRooms final : public Rooms {
 public:
  std::span<std::byte> room(std::size_t bytes) override { return rooms_.emplace_back(bytes); }

 private:
  std::list<CodedBytes> rooms_;
};

template <class Value, class Index>
struct Coding {
  using Entry = List<Value, Index>;
  static constexpr EntryType kType{sizeof(Value) == 8 ? DataType::kFloat64 : DataType::kFloat32,
                                   sizeof(Index)};

  struct Outcome {
    bool finite = true;
    Entry kept;
    Entry lost;
    CodedBytes message;  ///< without its header
  };

  /// Of `size` entries: neighbours and leaps, from where 31 or 32 bits end, or from 0 on.
  static Entry random_list(std::size_t size, bool zeros, std::mt19937_64& random) {
    const std::uint64_t starts[] = {0, 0x7FFFFF00U, sizeof(Index) == 8 ? 0xFFFFFF00U : 5U};
    const unsigned gap = 1U << (random() % 13);
    Entry list = random_list_from<Value, Index>(starts[random() % 3], size, gap, random);
    const std::uint64_t leap = sizeof(Index) == 8 ? std::uint64_t{1} << (random() % 46) : 100'000;
    for (std::size_t from = size == 0 ? 0 : random() % size; from < size && random() % 3 != 0;
         from += 1 + random() % size) {
      for (std::size_t i = from; i < size; ++i) {
        list.indices[i] += static_cast<Index>(leap);
      }
    }
    if (!zeros) {
      Entry others;
      for (std::size_t i = 0; i < size; ++i) {
        if (list.values[i] != 0) {
          others.push(list.indices[i], list.values[i]);
        }
      }
      return others;
    }
    return list;
  }

  /// Sizes of several blocks and of parts of one.
  static std::size_t random_size(std::uint64_t seed, std::mt19937_64& random) {
    const std::size_t largest = seed % 7 == 0 ? 6'000 : seed % 3 == 0 ? 6 : 800;
    return seed % 5 == 0 ? 256 * (1 + seed % 3) : random() % largest;
  }

  /// For `int8`: each value that becomes zero leaves room in its block for another one, and a
  /// larger one may turn others of its block to zero.
  static Entry random_list_of_uneven_blocks(std::uint64_t seed, std::mt19937_64& random) {
    Entry list = random_list(200 + random() % 3'000, false, random);
    const double rare = 1.0 / static_cast<double>(1 + random() % 400);
    std::uniform_real_distribution<double> uniform;
    const int spread = 1 + static_cast<int>(seed % 16);
    for (auto& value : list.values) {
      const double magnitude = uniform(random) < rare ? std::exp2(random() % spread) : 1.0;
      value =
          static_cast<Value>((random() % 2 == 0 ? 1 : -1) * magnitude * (0.5 + uniform(random)));
    }
    return list;
  }

  /// One value of it becomes infinite where values are rounded to fewer bits.
  static Entry list_with_a_huge_value(std::mt19937_64& random) {
    Entry list = random_list(3'000, true, random);
    std::ranges::fill(list.values, Value{1});
    list.values[1234] = std::numeric_limits<Value>::max();
    return list;
  }

  static std::uint64_t d_above(const Entry& list, std::mt19937_64& random) {
    return (list.indices.empty() ? 1 : std::uint64_t{list.indices.back()} + 1) + random() % 3;
  }

  static Entry entries_of(const sparse::List& list) {
    Entry entries;
    const auto view = list.entries<Value, Index>();
    entries.indices.assign(view.indices, view.indices + view.size);
    entries.values.assign(view.values, view.values + view.size);
    return entries;
  }

  static Outcome on_the_cpu(const Codec& codec, const Entry& list, bool zeros_are_lost,
                            std::uint64_t d) {
    OwnRooms rooms;
    const std::size_t count = list.indices.size();
    sparse::List made = codec.make(kType, count, rooms);
    std::copy(list.indices.begin(), list.indices.end(), made.room<Value, Index>().indices);
    std::copy(list.values.begin(), list.values.end(), made.room<Value, Index>().values);
    sparse::List lost = codec.make(kType, count, rooms);
    const Rounded rounded = codec.round(kType, made, count, &lost, zeros_are_lost);
    Outcome outcome;
    outcome.finite = rounded.finite;
    if (rounded.finite) {
      codec.close(kType, made, rounded.kept);
      lost.size = rounded.lost;
      outcome.kept = entries_of(made);
      outcome.lost = entries_of(lost);
      const std::span<std::byte> message = codec.encode(kType, made, d, rooms);
      outcome.message.assign(message.begin() + kFrontBytes, message.end());
    }
    return outcome;
  }

  static bool decode_on_the_cpu(const Codec& codec, const CodedBytes& body, std::size_t count,
                                std::uint64_t d, Entry& list) {
    OwnRooms rooms;
    CodedBytes message(kFrontBytes);
    message.insert(message.end(), body.begin(), body.end());
    try {
      list = entries_of(
          codec.decode(kType, {count, kType.index_bytes, true}, message, count, d, rooms));
      return true;
    } catch (const Damaged&) {
      return false;
    }
  }

  /// A message, and what its header says; mostly not what an encoder writes.
  struct Received {
    CodedBytes message;
    std::uint64_t count = 0;
    std::uint64_t d = 0;
    /// Whether the engine's thread refuses it: the kernels never see it.
    bool refused = false;
  };

  static Received random_damage(std::uint64_t seed, const Format& format, std::mt19937_64& random,
                                reference::Random& changes) {
    const std::size_t sizes[] = {random() % 1'500, 1 + random() % 3, 1 + random() % 40,
                                 1 + random() % 40};
    const std::size_t size = sizes[seed % 4];
    const Entry list = random_list(size, false, random);
    Received one;
    one.d = d_above(list, random);
    const Outcome sent = on_the_cpu(format.codec(), list, true, one.d);
    one.message = sent.message;
    one.count = sent.kept.indices.size();
    const std::size_t values = device::value_bytes<Value>(format.format, one.count);
    switch (random() % 8) {
      case 0:
        one.d -= std::min<std::uint64_t>(one.d, random() % 3);
        break;
      case 1:
        one.count += random() % 3;
        one.count -= std::min<std::uint64_t>(one.count, random() % 3);
        break;
      case 2:  // the end
        one.message.resize(one.message.size() + random() % 9);
        one.message.resize(one.message.size() -
                           std::min<std::size_t>(one.message.size(), random() % 9));
        break;
      case 3:  // a bit of the last byte, which may be one that nobody needs
        if (!one.message.empty()) {
          one.message.back() ^= std::byte{1} << random() % 8;
        }
        break;
      case 4:  // the parameter of the first gaps
        if (values < one.message.size()) {
          one.message[values] =
              static_cast<std::byte>(std::to_integer<int>(one.message[values]) + 1);
        }
        break;
      default:
        support::mutate(changes, one.message);
    }
    one.refused =
        one.count == 0 || one.message.size() < device::value_bytes<Value>(format.format, one.count);
    return one;
  }
};

}  // namespace gtopk::sparse::testing
