// Sparse, wire: for every codec of the registry and every width of value and index, a list
// comes out of a message as it went in; damaged messages are refused with the reason, nothing is
// read outside the message, and nothing is written beyond the list. Every codec is fuzzed alone.
#include "src/gtopk/wire/codec.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/cases.hpp"
#include "tests/support/first_seed.hpp"
#include "tests/support/mutate.hpp"

namespace gtopk::sparse {
namespace {

using Bytes = std::vector<std::byte>;
using ::testing::HasSubstr;

constexpr std::uint64_t kD = 1000;

/// Allocates every buffer separately, so that a sanitizer sees every byte out of bounds.
class OwnBuffers final : public BufferSource {
 public:
  std::span<std::byte> buffer(std::size_t bytes) override { return buffers_.emplace_back(bytes); }

 private:
  std::list<Bytes> buffers_;
};

/// A list as (index, value) pairs.
using Numbers = std::vector<std::pair<std::uint64_t, double>>;

const std::vector<EntryType> kTypes = {{DataType::kFloat32, 4},
                                       {DataType::kFloat32, 8},
                                       {DataType::kFloat64, 4},
                                       {DataType::kFloat64, 8}};

class EveryCodec : public ::testing::TestWithParam<std::tuple<std::string, std::size_t>> {
 protected:
  const Codec& codec_ = codec_registry().find(std::get<0>(GetParam())).codec;
  EntryType type_ = kTypes.at(std::get<1>(GetParam()));
  OwnBuffers buffers_;

  /// A list of these as the wire rounds it; it may have fewer entries.
  List closed(const Numbers& numbers, std::size_t capacity) {
    List list = codec_.make(type_, capacity, buffers_);
    visit_entry(type_, [&]<class Value, class Index>() {
      const EntriesOut<Value, Index> output = list.output<Value, Index>();
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        output.indices[i] = static_cast<Index>(numbers[i].first);
        output.values[i] = static_cast<Value>(numbers[i].second);
      }
    });
    codec_.close(type_, list, codec_.round(type_, list, numbers.size(), nullptr, true).kept);
    return list;
  }

  Numbers numbers_of(const List& list) const {
    Numbers numbers;
    visit_entry(type_, [&]<class Value, class Index>() {
      const Entries<Value, Index> entries = list.entries<Value, Index>();
      for (std::size_t i = 0; i < entries.size; ++i) {
        numbers.emplace_back(entries.indices[i], static_cast<double>(entries.values[i]));
      }
    });
    return numbers;
  }

  Bytes message_of(const List& list) {
    const std::span<std::byte> message = codec_.encode(type_, list, kD, buffers_);
    return {message.begin(), message.end()};
  }

  /// Empty when decoded.
  std::string refusal(Bytes message, const ListHeader& says, std::size_t capacity,
                      Numbers* numbers = nullptr) {
    try {
      const List list = codec_.decode(type_, says, message, capacity, kD, buffers_);
      if (numbers != nullptr) {
        *numbers = numbers_of(list);
      }
    } catch (const Damaged& damaged) {
      return damaged.what();
    }
    return {};
  }

  ListHeader header_of(std::size_t count) const { return {count, type_.index_bytes, true}; }

  static Numbers some(std::size_t count) {
    Numbers numbers;
    for (std::size_t i = 0; i < count; ++i) {
      numbers.emplace_back(7 * i + 3, static_cast<double>(i) - 2.5);
    }
    return numbers;
  }
};

TEST_P(EveryCodec, GivesBackWhatWentInForEveryCount) {
  for (std::size_t capacity = 0; capacity <= 10; ++capacity) {
    for (std::size_t count = 0; count <= capacity; ++count) {
      const List list = closed(some(count), capacity);
      const Numbers numbers = numbers_of(list);
      if (!codec_.ties()) {
        EXPECT_EQ(numbers, some(count)) << "few bits say these";
      }
      EXPECT_EQ(numbers_of(closed(numbers, capacity)), numbers)
          << "rounding and closing what is rounded moves entries, and changes none";
      const Bytes message = message_of(list);
      EXPECT_LE(message.size(), codec_.message_bytes(type_, capacity, kD));
      Numbers back;
      EXPECT_EQ(refusal(message, header_of(count), capacity, &back), "");
      EXPECT_EQ(back, numbers);
    }
  }
}

TEST_P(EveryCodec, PassesOnWhatItHasDecoded) {
  Bytes message = message_of(closed(some(7), 10));
  const Bytes before = message;
  const List list = codec_.decode(type_, header_of(7), message, 10, kD, buffers_);
  const Bytes after = message_of(list);
  EXPECT_TRUE(std::ranges::equal(std::span(after).subspan(kFrontBytes),
                                 std::span(before).subspan(kFrontBytes)));
}

TEST_P(EveryCodec, RefusesWhatIsCutOrPaddedAnywhere) {
  Bytes message = message_of(closed(some(5), 8));
  for (std::size_t length = kFrontBytes; length < message.size(); ++length) {
    EXPECT_NE(refusal({message.begin(), message.begin() + static_cast<std::ptrdiff_t>(length)},
                      header_of(5), 8),
              "")
        << length;
  }
  EXPECT_EQ(refusal(message, header_of(5), 8), "");
  message.push_back({});
  EXPECT_NE(refusal(message, header_of(5), 8), "");
}

TEST_P(EveryCodec, RefusesMoreEntriesThanTheCapacity) {
  EXPECT_NE(refusal(message_of(closed(some(8), 8)), header_of(8), 7), "");
}

TEST_P(EveryCodec, RefusesACountThatWrapsAround) {
  const Bytes message = message_of(closed(some(5), 8));
  for (const std::uint64_t count :
       {std::uint64_t{6}, ~std::uint64_t{0}, ~std::uint64_t{0} / type_.bytes() + 6,
        std::uint64_t{1} << 63U, (std::uint64_t{1} << 62U) + 5}) {
    EXPECT_NE(refusal(message, header_of(count), 8), "") << count;
  }
}

TEST_P(EveryCodec, RefusesIndicesOfAnotherWidth) {
  ListHeader says = header_of(3);
  says.index_bytes = 12 - says.index_bytes;
  EXPECT_THAT(refusal(message_of(closed(some(3), 3)), says, 3), HasSubstr("-byte indices"));
}

TEST_P(EveryCodec, WhateverBytesComeRefusesThemOrGivesAValidList) {
  std::uint64_t decoded = 0;
  constexpr std::uint64_t kRounds = 10'000;
  const std::uint64_t first = support::first_seed();
  for (std::uint64_t seed = first; seed < first + kRounds; ++seed) {
    reference::Random random(seed);
    const std::size_t capacity = random.below(13);
    Numbers numbers;
    for (std::size_t i = 0; capacity != 0 && i < random.below(capacity + 1); ++i) {
      numbers.emplace_back(i * 70 + random.below(70), random.uniform());
    }
    OwnBuffers buffers;
    const List list = closed(numbers, capacity);
    Bytes message = message_of(list);
    ListHeader says = header_of(list.size);
    if (!random.one_in(10)) {
      Bytes body(message.begin() + kFrontBytes, message.end());
      support::mutate(random, body);
      message.resize(kFrontBytes);
      message.insert(message.end(), body.begin(), body.end());
    }
    if (random.one_in(4)) {
      says.count = random.below(13);
    }
    Numbers back;
    const std::size_t receiver_capacity = random.below(13);
    if (!refusal(message, says, receiver_capacity, &back).empty()) {
      continue;
    }
    ++decoded;
    ASSERT_LE(back.size(), receiver_capacity) << "seed " << seed;
    for (std::size_t i = 0; i < back.size(); ++i) {
      ASSERT_LT(back[i].first, kD) << "seed " << seed;
      ASSERT_TRUE(i == 0 || back[i - 1].first < back[i].first) << "seed " << seed;
    }
  }
  EXPECT_GT(decoded, kRounds / 100);
  EXPECT_LT(decoded, kRounds);
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const Choice& choice : wires()) {
    names.emplace_back(choice.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Every, EveryCodec,
                         ::testing::Combine(::testing::ValuesIn(names()),
                                            ::testing::Range<std::size_t>(0, 4)),
                         [](const auto& instance) {
                           const EntryType type = kTypes.at(std::get<1>(instance.param));
                           std::string name =
                               fmt::format("{}_{}_index{}", std::get<0>(instance.param),
                                           to_string(type.value), type.index_bytes);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Only raw: other codecs cannot even encode such lists.
TEST(Raw, RefusesIndicesOutOfOrderTwiceOrBeyondD) {
  const Codec& codec = codec_registry().find("raw").codec;
  for (const EntryType type : kTypes) {
    visit_entry(type, [&]<class Value, class Index>() {
      const std::vector<std::vector<Index>> wrong = {
          {2, 1, 3}, {1, 1, 3}, {1, 3, 3}, {1, 2, kD}, {1, 2, static_cast<Index>(~Index{0})}};
      for (const std::vector<Index>& indices : wrong) {
        OwnBuffers buffers;
        List list = codec.make(type, 3, buffers);
        const EntriesOut<Value, Index> output = list.output<Value, Index>();
        std::ranges::copy(indices, output.indices);
        std::fill_n(output.values, 3, Value{1});
        codec.close(type, list, 3);
        const std::span<std::byte> message = codec.encode(type, list, kD, buffers);
        EXPECT_THROW(static_cast<void>(
                         codec.decode(type, {3, type.index_bytes, true}, message, 3, kD, buffers)),
                     Damaged);
      }
    });
  }
}

TEST(Raw, CopiesNothing) {
  const Codec& codec = codec_registry().find("raw").codec;
  OwnBuffers buffers;
  List list = codec.make(kTypes[0], 4, buffers);
  codec.close(kTypes[0], list, 4);
  const std::span<std::byte> message = codec.encode(kTypes[0], list, kD, buffers);
  EXPECT_EQ(message.data(), list.memory.data());
  EXPECT_EQ(message.size(), kFrontBytes + 4 * kTypes[0].bytes());
  EXPECT_EQ(list.values, message.data() + kFrontBytes);
}

TEST(Registry, NamesWhatThereIs) {
  try {
    static_cast<void>(codec_registry().find("zip"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::StartsWith("unknown wire 'zip'; available: raw, lossless, "
                                                    "bf16, fp16, int8, 4bit, 2bit, ternary, sign"));
  }
}

}  // namespace
}  // namespace gtopk::sparse
