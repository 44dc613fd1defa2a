// The kernels that make messages of lists, and lists of messages, on the CPU: the bytes, the
// entries and what rounding loses are the CPU codec's, and what that calls damaged is damaged here,
// too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "src/cuda/typed_calls.hpp"
#include "tests/gtopk/device/coding_cases.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::CodedBytes;
using testing::Format;
using testing::HostExecutor;
using testing::kFormats;

/// Memory as a device's: aligned, of whole words, and with garbage in it.
class Words {
 public:
  explicit Words(std::size_t bytes) : words_((bytes + 7) / 8, 0xA5A5A5A5A5A5A5A5U) {}
  explicit Words(const CodedBytes& bytes) : Words(bytes.size()) {
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
  using Cases = testing::Coding<Value, Index>;
  using Entry = typename Cases::Entry;
  using Outcome = typename Cases::Outcome;
  static constexpr EntryType kType = Cases::kType;

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
  static bool decode_on_the_device(const Format& format, const CodedBytes& message,
                                   std::size_t count, std::uint64_t d, Entry& list,
                                   std::mt19937_64& random) {
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

  static void expect_alike(const Format& format, const Entry& list, std::mt19937_64& random) {
    SCOPED_TRACE(format.wire);
    const Codec& codec = format.codec();
    const std::uint64_t d = Cases::d_above(list, random);
    const bool zeros_are_lost = random() % 2 == 0;
    const Outcome expected = Cases::on_the_cpu(codec, list, zeros_are_lost, d);
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
    const std::size_t size = TestFixture::Cases::random_size(seed, random);
    for (const Format& format : kFormats) {
      const bool zeros = format.format == ListFormat::kLossless;
      TestFixture::expect_alike(format, TestFixture::Cases::random_list(size, zeros, random),
                                random);
    }
  });
}

TYPED_TEST(DeviceCoding, FindsTheBlocksOfInt8WhereverTheyBegin) {
  testing::for_each_seed(60, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    TestFixture::expect_alike(testing::kInt8Format,
                              TestFixture::Cases::random_list_of_uneven_blocks(seed, random),
                              random);
  });
}

TYPED_TEST(DeviceCoding, NoticesWhatBecomesInfinite) {
  std::mt19937_64 random(3);
  const auto list = TestFixture::Cases::list_with_a_huge_value(random);
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
    for (const Format& format : kFormats) {
      SCOPED_TRACE(format.wire);
      const auto one = TestFixture::Cases::random_damage(seed, format, random, changes);
      if (one.refused) {
        continue;
      }
      typename TestFixture::Entry expected;
      typename TestFixture::Entry seen;
      const bool good = TestFixture::Cases::decode_on_the_cpu(format.codec(), one.message,
                                                              one.count, one.d, expected);
      ASSERT_EQ(
          TestFixture::decode_on_the_device(format, one.message, one.count, one.d, seen, random),
          good);
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
