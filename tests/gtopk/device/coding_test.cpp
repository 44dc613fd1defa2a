// The kernels that make messages of lists, and lists of messages, on the CPU: the bytes, the
// entries and what rounding loses are the CPU codec's, and what that calls damaged is damaged here,
// too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "src/cuda/typed_calls.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"
#include "tests/support/mutate.hpp"

namespace gtopk::sparse {
namespace {

using testing::HostExecutor;
using Bytes = std::vector<std::byte>;

struct Format {
  const char* wire;
  ListFormat format;
};
constexpr Format kFormats[] = {{"lossless", ListFormat::kLossless}, {"bf16", ListFormat::kBf16},
                               {"fp16", ListFormat::kFp16},         {"int8", ListFormat::kInt8},
                               {"2bit", ListFormat::k2Bit},         {"sign", ListFormat::kSign}};

class OwnRooms final : public Rooms {
 public:
  std::span<std::byte> room(std::size_t bytes) override { return rooms_.emplace_back(bytes); }

 private:
  std::list<Bytes> rooms_;
};

/// Memory as a device's: aligned, of whole words, and with garbage in it.
class Words {
 public:
  explicit Words(std::size_t bytes) : words_((bytes + 7) / 8, 0xA5A5A5A5A5A5A5A5U) {}
  explicit Words(const Bytes& bytes) : Words(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), data());
  }
  [[nodiscard]] std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }
  [[nodiscard]] std::size_t bytes() const { return words_.size() * 8; }

 private:
  std::vector<std::uint64_t> words_;
};

template <class Param>
class DeviceCoding : public ::testing::Test {
 protected:
  using Value = typename Param::Value;
  using Index = typename Param::Index;
  using Entry = testing::List<Value, Index>;
  static constexpr EntryType kType{sizeof(Value) == 8 ? DataType::kFloat64 : DataType::kFloat32,
                                   sizeof(Index)};

  struct Outcome {
    bool finite = true;
    Entry kept;
    Entry lost;
    Bytes message;  ///< without its header
  };

  /// Of `size` entries: neighbours and leaps, from where 31 or 32 bits end, or from 0 on.
  static Entry random_list(std::size_t size, bool zeros, std::mt19937_64& random) {
    const std::uint64_t starts[] = {0, 0x7FFFFF00U, sizeof(Index) == 8 ? 0xFFFFFF00U : 5U};
    const unsigned gap = 1U << (random() % 13);
    Entry list = testing::random_list_from<Value, Index>(starts[random() % 3], size, gap, random);
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

  static std::uint64_t d_above(const Entry& list, std::mt19937_64& random) {
    return (list.indices.empty() ? 1 : std::uint64_t{list.indices.back()} + 1) + random() % 3;
  }

  static Entry entries_of(const List& list) {
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
    List made = codec.make(kType, count, rooms);
    std::copy(list.indices.begin(), list.indices.end(), made.room<Value, Index>().indices);
    std::copy(list.values.begin(), list.values.end(), made.room<Value, Index>().values);
    List lost = codec.make(kType, count, rooms);
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

  static Outcome on_the_device(const Format& format, const Codec& codec, Entry list,
                               bool zeros_are_lost, bool wants_lost, std::uint64_t d,
                               std::mt19937_64& random) {
    const std::size_t count = list.indices.size();
    Words message(codec.message_bytes(kType, count, d) - kFrontBytes);
    Words room(cuda::coding_room(count, 0));
    const SelectionReport made{.kept = count, .dropped = 0, .finite = 1};
    ClosingReport report;
    Outcome outcome;
    const auto room_for = [count](Entry& entries) -> DetachedEntries {
      const auto out = entries.out(count);
      return {out.indices, out.values};
    };
    cuda::CloseCall call;
    call.values = kType.value;
    call.index_bytes = kType.index_bytes;
    call.room = room.data();
    call.closing = {.format = format.format,
                    .list = {list.indices.data(), list.values.data()},
                    .most = count,
                    .made = &made,
                    .kept = room_for(outcome.kept),
                    .lost = {},
                    .zeros_are_lost = zeros_are_lost,
                    .message = message.data(),
                    .message_bytes = message.bytes(),
                    .report = &report};
    if (wants_lost) {
      call.closing.lost = room_for(outcome.lost);
    }
    HostExecutor executor(random(), 1 + random() % 4);
    cuda::close<Value>(executor, call);
    outcome.finite = report.finite != 0;
    if (!codec.rounds()) {
      outcome.kept = list;
    }
    outcome.kept.shrink(report.kept);
    outcome.lost.shrink(wants_lost ? report.lost : 0);
    outcome.message.assign(message.data(), message.data() + report.bytes);
    return outcome;
  }

  /// False if it is damaged.
  static bool decode_on_the_device(const Format& format, const Bytes& message, std::size_t count,
                                   std::uint64_t d, Entry& list, std::mt19937_64& random) {
    Words body(message);
    Words room(cuda::coding_room(count, message.size()));
    const auto out = list.out(count);
    std::uint64_t sound = 1;
    cuda::DecodeCall call;
    call.values = kType.value;
    call.index_bytes = kType.index_bytes;
    call.coded = {body.data(), message.size(), format.format};
    call.d = d;
    call.room = room.data();
    call.list = {out.indices, out.values, count};
    call.sound = &sound;
    HostExecutor executor(random(), 1 + random() % 4);
    cuda::decode<Value>(executor, call);
    return sound != 0;
  }

  static bool decode_on_the_cpu(const Codec& codec, const Bytes& body, std::size_t count,
                                std::uint64_t d, Entry& list) {
    OwnRooms rooms;
    Bytes message(kFrontBytes);
    message.insert(message.end(), body.begin(), body.end());
    try {
      list = entries_of(
          codec.decode(kType, {count, kType.index_bytes, true}, message, count, d, rooms));
      return true;
    } catch (const Damaged&) {
      return false;
    }
  }

  static void expect_alike(const Format& format, const Entry& list, std::mt19937_64& random) {
    SCOPED_TRACE(format.wire);
    const Codec& codec = codec_registry().find(format.wire).codec;
    const std::uint64_t d = d_above(list, random);
    const bool zeros_are_lost = random() % 2 == 0;
    const Outcome expected = on_the_cpu(codec, list, zeros_are_lost, d);
    const Outcome seen = on_the_device(format, codec, list, zeros_are_lost, true, d, random);
    ASSERT_EQ(seen.finite, expected.finite);
    ASSERT_TRUE(testing::same_bits(seen.kept, expected.kept));
    ASSERT_TRUE(testing::same_bits(seen.lost, expected.lost));
    ASSERT_EQ(seen.message, expected.message);
    EXPECT_EQ(on_the_device(format, codec, list, zeros_are_lost, false, d, random).message,
              expected.message);
    if (!seen.kept.indices.empty()) {
      Entry back;
      ASSERT_TRUE(
          decode_on_the_device(format, seen.message, seen.kept.indices.size(), d, back, random));
      EXPECT_TRUE(testing::same_bits(back, seen.kept));
    }
  }
};

TYPED_TEST_SUITE(DeviceCoding, testing::AllListTypes);

TYPED_TEST(DeviceCoding, GivesTheBytesTheEntriesAndTheLossesOfTheCpu) {
  testing::for_each_seed(200, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t largest = seed % 7 == 0 ? 6'000 : seed % 3 == 0 ? 6 : 800;
    const std::size_t size = seed % 5 == 0 ? 256 * (1 + seed % 3) : random() % largest;
    for (const Format& format : kFormats) {
      const bool zeros = format.format == ListFormat::kLossless;
      TestFixture::expect_alike(format, TestFixture::random_list(size, zeros, random), random);
    }
  });
}

// Each value that becomes zero leaves room in its block of `int8` for another one, and a larger one
// may turn others of its block to zero.
TYPED_TEST(DeviceCoding, FindsTheBlocksOfInt8WhereverTheyBegin) {
  using Value = typename TestFixture::Value;
  testing::for_each_seed(60, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto list = TestFixture::random_list(200 + random() % 3'000, false, random);
    const double rare = 1.0 / static_cast<double>(1 + random() % 400);
    std::uniform_real_distribution<double> uniform;
    const int spread = 1 + static_cast<int>(seed % 16);
    for (auto& value : list.values) {
      const double magnitude = uniform(random) < rare ? std::exp2(random() % spread) : 1.0;
      value =
          static_cast<Value>((random() % 2 == 0 ? 1 : -1) * magnitude * (0.5 + uniform(random)));
    }
    TestFixture::expect_alike(kFormats[3], list, random);
  });
}

TYPED_TEST(DeviceCoding, NoticesWhatBecomesInfinite) {
  using Value = typename TestFixture::Value;
  std::mt19937_64 random(3);
  auto list = TestFixture::random_list(3'000, true, random);
  std::ranges::fill(list.values, Value{1});
  list.values[1234] = std::numeric_limits<Value>::max();
  for (const Format& format : kFormats) {
    TestFixture::expect_alike(format, list, random);
  }
}

TYPED_TEST(DeviceCoding, FindsDamagedWhatTheCpuFindsDamaged) {
  std::uint64_t damaged = 0;
  std::uint64_t decoded = 0;
  testing::for_each_seed(700, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    reference::Random changes(seed);
    const std::size_t size = seed % 4 == 0 ? random() % 1'500 : 1 + random() % 40;
    for (const Format& format : kFormats) {
      SCOPED_TRACE(format.wire);
      const Codec& codec = codec_registry().find(format.wire).codec;
      auto list = TestFixture::random_list(size, false, random);
      std::uint64_t d = TestFixture::d_above(list, random);
      const auto sent = TestFixture::on_the_cpu(codec, list, true, d);
      Bytes message = sent.message;
      std::uint64_t count = sent.kept.indices.size();
      switch (random() % 6) {
        case 0:
          d -= std::min<std::uint64_t>(d, random() % 3);
          break;
        case 1:
          count += random() % 3;
          count -= std::min<std::uint64_t>(count, random() % 3);
          break;
        case 2:  // the end
          message.resize(message.size() + random() % 9);
          message.resize(message.size() - std::min<std::size_t>(message.size(), random() % 9));
          break;
        default:
          support::mutate(changes, message);
      }
      // The engine's thread refuses what is shorter.
      const auto least = device::value_bytes<typename TestFixture::Value>(format.format, count);
      if (count == 0 || message.size() < least) {
        continue;
      }
      typename TestFixture::Entry expected;
      typename TestFixture::Entry seen;
      const bool good = TestFixture::decode_on_the_cpu(codec, message, count, d, expected);
      ASSERT_EQ(TestFixture::decode_on_the_device(format, message, count, d, seen, random), good);
      if (good) {
        ASSERT_TRUE(testing::same_bits(seen, expected));
      }
      ++(good ? decoded : damaged);
    }
  });
  EXPECT_GT(damaged, 100U);
  EXPECT_GT(decoded, 20U);
}

}  // namespace
}  // namespace gtopk::sparse
