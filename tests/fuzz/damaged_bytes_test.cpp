// Fuzz: whatever bytes arrive, reading a header and decoding a notice either refuse them or give
// something valid. Lists: gtopk/wire/codec_test.cpp. Deterministic: a round is replayed by its
// seed. Buffers have the exact size, for the sanitizers.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "gtopk/collectives.hpp"
#include "src/collectives/header.hpp"
#include "src/engine/notice.hpp"
#include "src/engine/task.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/first_seed.hpp"
#include "tests/support/inproc_ranks.hpp"
#include "tests/support/mutate.hpp"

namespace gtopk {
namespace {

using reference::Random;
using Bytes = std::vector<std::byte>;

TEST(FuzzedHeader, IsRefusedOrSaysWhatThisRankCalled) {
  support::InprocRanks ranks(2);
  engine::Operation operation(ranks.engine(0), ranks.group(0), 3, {}, barrier());
  engine::GroupView view(operation);
  std::uint64_t asked = 0;
  const std::uint64_t first = support::first_seed();
  for (std::uint64_t seed = first; seed < first + 20000; ++seed) {
    Random random(seed);
    Bytes bytes(collectives::kHeaderBytes);
    collectives::write_header(bytes, view, {.count = 77});
    support::mutate(random, bytes);
    engine::Task<collectives::Header> reading = collectives::read_header(bytes, view, 1);
    reading.start();
    if (!reading.done()) {  // another fingerprint: the sender is asked for its call
      ++asked;
      static_cast<void>(operation.take_questions());
      continue;
    }
    try {
      const collectives::Header header = reading.take();
      ASSERT_EQ(header.fingerprint, view.fingerprint()) << "seed " << seed;
      ASSERT_EQ(header.sequence, 3U);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kMismatch);
    }
  }
  EXPECT_GT(asked, 100U);
}

TEST(FuzzedNotice, IsNoneOrValid) {
  std::uint64_t decoded = 0;
  const std::uint64_t first = support::first_seed();
  for (std::uint64_t seed = first; seed < first + 30000; ++seed) {
    Random random(seed);
    engine::Notice notice;
    notice.kind = static_cast<engine::NoticeKind>(1 + random.below(7));
    notice.text.assign(random.below(1200), 'x');
    engine::Notice::Wire wire{};
    engine::encode(notice, wire);
    Bytes bytes(wire.begin(), wire.end());
    if (!random.one_in(10)) {
      support::mutate(random, bytes);
    }
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
