// Messages of coded wires, made and read by the kernels' library on the GPU: the bytes, the entries
// and the losses of the CPU's codecs; and what those call damaged is damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cuda/kernels_acc.hpp"
#include "tests/gtopk/device/coding_cases.hpp"
#include "tests/gtopk/device/merge_cases.hpp"
#include "tests/gtopk/value/seeds.hpp"

namespace gtopk::sparse {
namespace {

using testing::Array;
using testing::CodedBytes;
using testing::Format;
using testing::kFormats;
using testing::ListThere;
using testing::One;
using testing::Place;
using testing::scaled;

/// As many bytes as are readable of a message: whole words.
[[nodiscard]] std::size_t whole_words(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

[[nodiscard]] CodedBytes padded(CodedBytes message) {
  message.resize(whole_words(message.size()), std::byte{0xA5});
  return message;
}

template <class Param>
class KernelsCoding : public ::testing::Test {
 protected:
  using Value = typename Param::Value;
  using Index = typename Param::Index;
  using Cases = testing::Coding<Value, Index>;
  using Entry = typename Cases::Entry;
  using Outcome = typename Cases::Outcome;
  static constexpr EntryType kType = Cases::kType;

  /// The memory of a list that is closed, and its call.
  struct Closing {
    /// Of up to `most` entries, as `made` says.
    Closing(const Format& format, const ListThere<Value, Index>& list, std::size_t most,
            std::uint64_t d, const SelectionReport& made, bool zeros_are_lost, bool wants_lost)
        : rounds(format.codec().rounds()),
          room(Place::kDevice, testing::Gpu::get().calls().coding_room(most, 0)),
          message(Place::kDevice,
                  whole_words(format.codec().message_bytes(kType, most, d) - kFrontBytes)),
          kept(Place::kDevice, most),
          lost(Place::kDevice, most),
          made(Place::kPinned, made),
          report(Place::kPinned, {}) {
      call.values = kType.value;
      call.index_bytes = kType.index_bytes;
      call.room = room.data();
      call.closing = {.format = format.format,
                      .list = list.room(),
                      .most = most,
                      .made = this->made.data(),
                      .kept = kept.room(),
                      .lost = {},
                      .zeros_are_lost = zeros_are_lost,
                      .message = message.data(),
                      .message_bytes = message.size(),
                      .report = report.data()};
      if (wants_lost) {
        call.closing.lost = lost.room();
      }
    }

    /// What it has left, once it has run; `list` is what was closed.
    [[nodiscard]] Outcome outcome(const Entry& list) const {
      const ClosingReport said = report.value();
      Outcome outcome;
      outcome.finite = said.finite != 0;
      if (rounds) {
        outcome.kept = kept.read(std::min<std::size_t>(said.kept, call.closing.most));
      } else {
        outcome.kept = list;
        outcome.kept.shrink(said.kept);
      }
      if (call.closing.lost.indices != nullptr) {
        outcome.lost = lost.read(std::min<std::size_t>(said.lost, call.closing.most));
      }
      EXPECT_LE(said.bytes, message.size());
      outcome.message = message.read(std::min<std::size_t>(said.bytes, message.size()));
      return outcome;
    }

    bool rounds;
    Array<std::byte> room;
    Array<std::byte> message;
    ListThere<Value, Index> kept;
    ListThere<Value, Index> lost;
    One<SelectionReport> made;
    One<ClosingReport> report;
    cuda::CloseCall call;
  };

  /// The same of a list that is decoded.
  struct Decoding {
    Decoding(const Format& format, const CodedBytes& body, std::size_t count, std::uint64_t d,
             std::mt19937_64& random)
        : message(testing::either(random), padded(body)),
          room(Place::kDevice, testing::Gpu::get().calls().coding_room(count, body.size())),
          list(Place::kDevice, count),
          sound(Place::kPinned, 1) {
      call.values = kType.value;
      call.index_bytes = kType.index_bytes;
      call.coded = {message.data(), body.size(), format.format};
      call.d = d;
      call.room = room.data();
      call.list = list.of();
      call.sound = sound.data();
    }

    Array<std::byte> message;
    Array<std::byte> room;
    ListThere<Value, Index> list;
    One<std::uint64_t> sound;
    cuda::DecodeCall call;
  };

  static void expect_same(const Outcome& seen, const Outcome& expected) {
    ASSERT_EQ(seen.finite, expected.finite);
    ASSERT_TRUE(testing::same_bits(seen.kept, expected.kept));
    ASSERT_TRUE(testing::same_bits(seen.lost, expected.lost));
    ASSERT_EQ(seen.message, expected.message);
  }

  static void expect_as_on_the_cpu(const Format& format, const Entry& list,
                                   std::mt19937_64& random) {
    SCOPED_TRACE(format.wire);
    const std::uint64_t d = Cases::d_above(list, random);
    const std::size_t count = list.indices.size();
    const bool zeros_are_lost = random() % 2 == 0;
    Outcome expected = Cases::on_the_cpu(format.codec(), list, zeros_are_lost, d);
    // The room may be for more entries than there are.
    const std::size_t most = count + random() % 300;
    Entry with_room = list;
    with_room.indices.resize(most);
    with_room.values.resize(most);
    const ListThere<Value, Index> there(Place::kDevice, with_room);
    const SelectionReport made{.kept = count, .dropped = 0, .finite = 1};
    const Closing closing(format, there, most, d, made, zeros_are_lost, true);
    testing::run(&cuda::Calls::close, closing.call);
    expect_same(closing.outcome(list), expected);
    if (!expected.kept.indices.empty()) {
      const std::size_t kept = expected.kept.indices.size();
      const Decoding decoding(format, expected.message, kept, d, random);
      testing::run(&cuda::Calls::decode, decoding.call);
      EXPECT_EQ(decoding.sound.value(), 1U);
      EXPECT_TRUE(testing::same_bits(decoding.list.read(kept), expected.kept));
    }
    const Closing unwatched(format, there, most, d, made, zeros_are_lost, false);
    testing::run(&cuda::Calls::close, unwatched.call);
    expected.lost = {};
    expect_same(unwatched.outcome(list), expected);
  }
};

TYPED_TEST_SUITE(KernelsCoding, testing::AllListTypes);

TYPED_TEST(KernelsCoding, GiveTheBytesTheEntriesAndTheLossesOfTheCpu) {
  testing::for_each_seed(scaled(60), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t size = TestFixture::Cases::random_size(seed, random);
    for (const Format& format : kFormats) {
      const bool zeros = format.format == ListFormat::kLossless;
      TestFixture::expect_as_on_the_cpu(
          format, TestFixture::Cases::random_list(size, zeros, random), random);
    }
  });
}

TYPED_TEST(KernelsCoding, FindTheBlocksOfInt8WhereverTheyBegin) {
  testing::for_each_seed(scaled(32), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    TestFixture::expect_as_on_the_cpu(
        testing::kInt8Format, TestFixture::Cases::random_list_of_uneven_blocks(seed, random),
        random);
  });
}

TYPED_TEST(KernelsCoding, NoticeWhatBecomesInfinite) {
  std::mt19937_64 random(3);
  const auto list = TestFixture::Cases::list_with_a_huge_value(random);
  for (const Format& format : kFormats) {
    TestFixture::expect_as_on_the_cpu(format, list, random);
  }
}

TYPED_TEST(KernelsCoding, FindDamagedWhatTheCpuFindsDamaged) {
  testing::for_each_seed(scaled(240), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    reference::Random changes(seed);
    for (const Format& format : kFormats) {
      SCOPED_TRACE(format.wire);
      const auto one = TestFixture::Cases::random_damage(seed, format, random, changes);
      if (one.refused) {
        continue;
      }
      typename TestFixture::Entry expected;
      const bool good = TestFixture::Cases::decode_on_the_cpu(format.codec(), one.message,
                                                              one.count, one.d, expected);
      const typename TestFixture::Decoding decoding(format, one.message, one.count, one.d, random);
      testing::run(&cuda::Calls::decode, decoding.call);
      ASSERT_EQ(decoding.sound.value() != 0, good);
      if (good) {
        ASSERT_TRUE(testing::same_bits(decoding.list.read(one.count), expected));
      }
    }
  });
}

// What the launcher enqueues for a node of the tree: a received message is decoded and merged, and
// what is kept becomes a message, with nobody waiting in between.
TYPED_TEST(KernelsCoding, MakeANodeOfTheTreeInOneGo) {
  using Value = typename TestFixture::Value;
  using Index = typename TestFixture::Index;
  using Cases = typename TestFixture::Cases;
  testing::for_each_seed(scaled(24), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    constexpr std::uint64_t kD = 20'000;
    for (const Format& format : kFormats) {
      SCOPED_TRACE(format.wire);
      testing::MergeCase<Value, Index> node;
      node.a = testing::random_list_below<Value, Index>(kD, 9, random);
      const auto theirs = Cases::on_the_cpu(
          format.codec(), testing::random_list_below<Value, Index>(kD, 9, random), true, kD);
      ASSERT_TRUE(theirs.finite);
      node.b = theirs.kept;
      node.k = 1 + random() % 2'000;
      const auto merged = testing::merged_on_the_cpu(node);
      const auto expected = Cases::on_the_cpu(format.codec(), merged.kept, true, kD);

      const std::size_t most = std::min(node.k, node.all());
      const typename TestFixture::Decoding decoding(format, theirs.message, node.b.indices.size(),
                                                    kD, random);
      const ListThere<Value, Index> mine(Place::kDevice, node.a);
      const ListThere<Value, Index> kept(Place::kDevice, most);
      const ListThere<Value, Index> dropped(Place::kDevice, node.all());
      const typename TestFixture::Closing closing(format, kept, most, kD, {}, true, true);
      cuda::MergeCall merge;
      merge.values = TestFixture::kType.value;
      merge.index_bytes = sizeof(Index);
      const Array<std::byte> room(Place::kDevice, testing::Gpu::get().calls().merge_room(
                                                      merge.values, merge.index_bytes, node.all()));
      merge.a = mine.of();
      merge.b = decoding.list.of();
      merge.k = node.k;
      merge.room = room.data();
      merge.kept = kept.of();
      merge.dropped = dropped.of();
      merge.report = closing.made.data();
      merge.sound = decoding.sound.data();
      merge.d = kD;
      merge.checked = 1;
      testing::enqueue(&cuda::Calls::decode, decoding.call);
      testing::enqueue(&cuda::Calls::merge, merge);
      testing::run(&cuda::Calls::close, closing.call);
      EXPECT_EQ(decoding.sound.value(), 1U);
      ASSERT_EQ(closing.made.value().dropped, merged.dropped.indices.size());
      EXPECT_TRUE(testing::same_bits(dropped.read(merged.dropped.indices.size()), merged.dropped));
      TestFixture::expect_same(closing.outcome(merged.kept), expected);
    }
  });
}

// Of a selection that is not finite.
TYPED_TEST(KernelsCoding, CloseAnEmptyListIfWhatWasMadeIsNotFinite) {
  std::mt19937_64 random(7);
  const auto list = TestFixture::Cases::random_list(700, false, random);
  const ListThere<typename TestFixture::Value, typename TestFixture::Index> there(Place::kDevice,
                                                                                  list);
  const std::size_t most = list.indices.size();
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.wire);
    const typename TestFixture::Closing closing(
        format, there, most, TestFixture::Cases::d_above(list, random),
        {.kept = most, .dropped = 0, .finite = 0}, true, true);
    testing::run(&cuda::Calls::close, closing.call);
    EXPECT_EQ(closing.report.value().kept, 0U);
    EXPECT_EQ(closing.report.value().lost, 0U);
  }
}

}  // namespace
}  // namespace gtopk::sparse
