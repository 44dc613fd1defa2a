// Fuzz: whatever bytes arrive, opening a list, reading a header and decoding a notice either refuse
// them or give something that is valid. Deterministic: the seed of a round replays it. Memory is
// allocated to size, for the sanitizers.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/notice.hpp"
#include "gtopk/wire/list_message.hpp"
#include "support/cases.hpp"
#include "support/inproc_ranks.hpp"

namespace gtopk {
namespace {

using reference::Random;
using Bytes = std::vector<std::byte>;

/// A few of: bits turned, bytes set to extremes, stretches copied, removed or inserted.
void mutate(Random& random, Bytes& bytes) {
  const std::uint64_t changes = 1 + random.below(4);
  for (std::uint64_t change = 0; change < changes; ++change) {
    if (bytes.empty()) {
      bytes.resize(1 + random.below(100));
      continue;
    }
    const std::uint64_t at = random.below(bytes.size());
    const std::uint64_t length = 1 + random.below(std::min<std::uint64_t>(bytes.size() - at, 16));
    switch (random.below(7)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random.below(256));
        break;
      case 2:
        std::memset(bytes.data() + at, 0xFF, length);
        break;
      case 3:
        std::memset(bytes.data() + at, 0, length);
        break;
      case 4:
        std::memmove(bytes.data() + random.below(bytes.size() - length + 1), bytes.data() + at,
                     length);
        break;
      case 5:
        bytes.resize(at);
        break;
      default:
        bytes.insert(bytes.end(), length * 9, static_cast<std::byte>(random.below(256)));
        break;
    }
  }
}

template <class Value, class Index>
void fuzz_lists(std::uint64_t rounds) {
  using List = sparse::ListMessage<Value, Index>;
  support::InprocRanks ranks(3);
  engine::Operation operation(ranks.engine(1), ranks.group(1), 7, {});
  engine::GroupView view(operation);
  collectives::Signature signature;
  signature.collective = collectives::Collective::kSparseAllReduce;
  signature.d = 500;
  signature.k = 12;
  std::uint64_t opened = 0;
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    Random random(seed);
    const std::size_t capacity = random.below(13);
    Bytes bytes(List::bytes_for(capacity));
    List list(bytes, capacity);
    const std::size_t count = capacity == 0 ? 0 : random.below(capacity + 1);
    for (std::size_t i = 0; i < count; ++i) {
      list.room().indices[i] = static_cast<Index>(i * 40 + random.below(40));
      list.room().values[i] = static_cast<Value>(random.uniform());
    }
    list.seal(signature, 7, count, !random.one_in(8));
    bytes.resize(list.bytes().size());
    if (!random.one_in(10)) mutate(random, bytes);

    const std::size_t room_for = random.below(13);
    bytes.resize(
        std::min(bytes.size(), List::bytes_for(room_for)));  // the network's truncation check
    const std::size_t received = bytes.size();
    bytes.resize(List::bytes_for(room_for));
    List room(bytes, room_for);
    try {
      room.open(received, signature, view, 2);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kMismatch) << "seed " << seed;
      ASSERT_FALSE(std::string(error.what()).empty());
      continue;
    }
    ++opened;
    const sparse::Entries<Value, Index> entries = room.entries();
    ASSERT_LE(entries.size, room_for) << "seed " << seed;
    ASSERT_EQ(room.bytes().size(), received) << "seed " << seed;
    for (std::size_t i = 0; i < entries.size; ++i) {
      ASSERT_LT(entries.indices[i], signature.d) << "seed " << seed;
      const bool ascends = i == 0 || entries.indices[i - 1] < entries.indices[i];
      ASSERT_TRUE(ascends) << "seed " << seed;
    }
  }
  EXPECT_GT(opened, rounds / 100);
  EXPECT_LT(opened, rounds);
}

TEST(FuzzedList, IsRefusedOrValid) {
  fuzz_lists<float, std::uint32_t>(20000);
  fuzz_lists<double, std::uint32_t>(10000);
  fuzz_lists<float, std::uint64_t>(10000);
  fuzz_lists<double, std::uint64_t>(10000);
}

TEST(FuzzedHeader, IsRefusedOrSaysWhatThisRankCalled) {
  support::InprocRanks ranks(2);
  engine::Operation operation(ranks.engine(0), ranks.group(0), 3, {});
  engine::GroupView view(operation);
  collectives::Signature signature;
  signature.collective = collectives::Collective::kAllReduce;
  signature.d = 77;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    Bytes bytes(collectives::kHeaderBytes);
    collectives::write_header(bytes, signature, 3, {.count = 77});
    mutate(random, bytes);
    try {
      const collectives::Header header = collectives::read_header(bytes, signature, view, 1);
      ASSERT_EQ(header.d, 77U);
      ASSERT_EQ(header.sequence, 3U);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kMismatch);
    }
  }
}

TEST(FuzzedNotice, IsNoneOrValid) {
  std::uint64_t decoded = 0;
  for (std::uint64_t seed = 0; seed < 30000; ++seed) {
    Random random(seed);
    engine::Notice notice;
    notice.kind = static_cast<engine::NoticeKind>(1 + random.below(7));
    notice.text.assign(random.below(1200), 'x');
    engine::Notice::Wire wire{};
    engine::encode(notice, wire);
    Bytes bytes(wire.begin(), wire.end());
    if (!random.one_in(10)) mutate(random, bytes);
    if (const auto back = engine::decode(bytes)) {
      ++decoded;
      ASSERT_LE(back->text.size(), engine::Notice::kMaxText);
      ASSERT_FALSE(to_string(back->error) == "unknown") << "seed " << seed;
    }
  }
  EXPECT_GT(decoded, 3000U);
}

}  // namespace
}  // namespace gtopk
