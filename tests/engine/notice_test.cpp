// Engine: notices as bytes, and the pool of message buffers.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "src/engine/buffer_pool.hpp"
#include "src/engine/notice.hpp"

namespace gtopk::engine {
namespace {

TEST(Notice, ComesBackAsItWasSent) {
  for (const NoticeKind kind :
       {NoticeKind::kAbort, NoticeKind::kGroupFailure, NoticeKind::kProbe, NoticeKind::kReply,
        NoticeKind::kGoodbye, NoticeKind::kAsk, NoticeKind::kCall, NoticeKind::kWithdraw,
        NoticeKind::kHeard, NoticeKind::kAllHeard, NoticeKind::kClear, NoticeKind::kCredit,
        NoticeKind::kUnmatched, NoticeKind::kHello}) {
    const Notice sent{kind, ErrorKind::kUnsupported, 4095, 0xffffffffffffffff, "why \xc3\xa9",
                      4094};
    Notice::Wire wire{};
    encode(sent, wire);
    const auto received = decode(wire);
    ASSERT_TRUE(received.has_value());
    EXPECT_EQ(received->kind, sent.kind);
    EXPECT_EQ(received->error, sent.error);
    EXPECT_EQ(received->group, sent.group);
    EXPECT_EQ(received->sequence, sent.sequence);
    EXPECT_EQ(received->text, sent.text);
    EXPECT_EQ(received->answer_group, sent.answer_group);
  }
}

TEST(Notice, HoldsAWithdrawal) {
  for (const bool held : {false, true}) {
    const Withdrawal sent{(1U << 18U) - 1, -7, 0xfffffffeU, held, 0xfedcba9876543210U};
    Notice::Wire wire{};
    encode(sent.notice(), wire);
    const auto notice = decode(wire);
    ASSERT_TRUE(notice.has_value());
    EXPECT_EQ(notice->kind, NoticeKind::kWithdraw);
    const Withdrawal received = Withdrawal::of(*notice);
    EXPECT_EQ(received.source, sent.source);
    EXPECT_EQ(received.tag, sent.tag);
    EXPECT_EQ(received.serial, sent.serial);
    EXPECT_EQ(received.held, held);
    EXPECT_EQ(received.apart, sent.apart);
  }
}

TEST(Notice, CutsATextThatIsTooLong) {
  Notice::Wire wire{};
  encode({NoticeKind::kAbort, ErrorKind::kMismatch, 0, 0, std::string(5000, 'x')}, wire);
  const auto received = decode(wire);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->text, std::string(Notice::kMaxText, 'x'));
}

TEST(Notice, OfAnotherLengthIsNone) {
  Notice::Wire wire{};
  encode({}, wire);
  EXPECT_FALSE(decode(std::span(wire).first(Notice::kBytes - 1)).has_value());
  EXPECT_FALSE(decode({}).has_value());
}

TEST(BufferPool, GivesAlignedMemoryAndKeepsIt) {
  BufferPool pool;
  for (const std::size_t bytes : {0UL, 1UL, 64UL, 65UL, 5000UL, 1UL << 20U}) {
    BufferPool::Buffer buffer = pool.take(bytes);
    EXPECT_GE(buffer.capacity, bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.memory.get()) % BufferPool::kAlignment, 0U);
    const std::byte* const memory = buffer.memory.get();
    pool.give_back(std::move(buffer));
    const std::size_t before = pool.allocations();
    BufferPool::Buffer again = pool.take(bytes);
    EXPECT_EQ(again.memory.get(), memory);
    EXPECT_EQ(pool.allocations(), before);
    pool.give_back(std::move(again));
  }
}

/// How many of the pages of this memory the kernel has given.
std::size_t pages_given(std::byte* memory, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 4096;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(memory) / kPage * kPage;
  std::vector<unsigned char> given(bytes / kPage);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(first), bytes, given.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(given.begin(), given.end(), [](unsigned char page) { return page % 2 == 1; }));
}

TEST(BufferPool, WritesToEachPageOfALongBufferBeforeOthersDo) {
  // So long that the heap has no such memory that was written before.
  constexpr std::size_t kBytes = 96UL << 20U;
  BufferPool pool;
  const BufferPool::Buffer buffer = pool.take(kBytes);
  EXPECT_EQ(pages_given(buffer.memory.get(), kBytes), kBytes / 4096);
}

/// Takes and gives back: `held` buffers of so many bytes at once, until the pool has looked twice.
void keep_taking(BufferPool& pool, std::size_t bytes, std::size_t held) {
  for (std::uint32_t taken = 0; taken < 2 * BufferPool::kLookAfter;) {
    std::vector<BufferPool::Buffer> buffers;
    for (; buffers.size() < held; ++taken) {
      buffers.push_back(pool.take(bytes));
    }
    for (BufferPool::Buffer& buffer : buffers) {
      pool.give_back(std::move(buffer));
    }
  }
}

TEST(BufferPool, FreesWhatNobodyHasNeededForLong) {
  BufferPool pool;
  constexpr std::size_t kLarge = std::size_t{1} << 22U;
  {
    std::vector<BufferPool::Buffer> buffers;
    for (int i = 0; i < 3; ++i) {
      buffers.push_back(pool.take(kLarge));
    }
    for (BufferPool::Buffer& buffer : buffers) {
      pool.give_back(std::move(buffer));
    }
  }
  EXPECT_EQ(pool.kept_bytes(), 3 * kLarge);
  keep_taking(pool, kLarge, 1);
  EXPECT_EQ(pool.kept_bytes(), kLarge);
  keep_taking(pool, 64, 2);
  EXPECT_EQ(pool.kept_bytes(), 2 * 64U);
}

TEST(BufferPool, AllocatesNothingWhileTheSameIsNeededAgainAndAgain) {
  BufferPool pool;
  keep_taking(pool, 5000, 5);
  const std::size_t before = pool.allocations();
  EXPECT_EQ(before, 5U);
  keep_taking(pool, 5000, 5);
  EXPECT_EQ(pool.allocations(), before);
}

}  // namespace
}  // namespace gtopk::engine
