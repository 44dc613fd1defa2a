// Engine: what ended operations and groups leave behind: no storage that slows later ones down, and
// no timers that keep an idle process awake.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include <fmt/format.h>

#include "src/engine/group_view.hpp"
#include "src/engine/shared_deadline.hpp"
#include "tests/support/calls.hpp"

namespace gtopk {
namespace {

using engine::MessageSlot;
using engine::MessageSlots;
using support::InprocRanks;
using support::SharedEnding;

/// `messages` each way between two ranks, all at once.
engine::OperationSpec many_messages(std::uint32_t messages) {
  engine::OperationSpec spec;
  spec.name = "many messages";
  spec.body = [messages](engine::GroupView& group) -> engine::Task<void> {
    const std::uint32_t other = 1 - group.rank();
    std::deque<engine::Message> all;
    for (std::uint32_t number = 0; number < messages; ++number) {
      all.push_back(group.recv(other, 0, group.buffer(64)));
      all.push_back(group.send(other, 0, group.buffer(64)));
    }
    while (!all.empty()) {
      engine::Message& oldest = all.front();
      co_await oldest;
      all.pop_front();
    }
  };
  return spec;
}

TEST(Storage, OfALargeOperationIsNotKeptForTheNextOnes) {
  InprocRanks ranks(2);
  const auto endings = ranks.run([](std::uint32_t) { return many_messages(2000); });
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
  ASSERT_EQ(support::group_works(ranks), "");
  ranks.settle();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_FALSE(ranks.engine(rank).storages().empty());
    for (const auto& storage : ranks.engine(rank).storages()) {
      EXPECT_LE(storage->slots.size(), MessageSlots::kKept);
      EXPECT_LE(storage->buffers.capacity(), 1024U);
    }
  }
}

TEST(Storage, OfASmallOperationIsAllKept) {
  InprocRanks ranks(2);
  for (int round = 0; round < 3; ++round) {
    for (const auto& ending : ranks.run([](std::uint32_t) { return many_messages(20); })) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    ranks.settle();
    ASSERT_EQ(ranks.engine(0).storages().size(), 1U);
    EXPECT_EQ(ranks.engine(0).storages().front()->slots.size(), 40U);
  }
}

TEST(Slots, AreWalkedAsFarAsTheyAreInUseAndInOrder) {
  MessageSlots slots;
  InprocRanks ranks(1);
  engine::Operation operation(ranks.engine(0), ranks.group(0), 0, {}, {});
  std::vector<MessageSlot*> taken;
  for (std::uint32_t number = 0; number < 1000; ++number) {
    taken.push_back(&slots.take(operation));
    taken.back()->rank = number;
  }
  for (std::uint32_t number = 0; number < 1000; ++number) {
    if (number % 250 != 3) {
      slots.give_back(*taken[number]);
    }
  }
  std::vector<std::uint32_t> visited;
  slots.for_each([&](MessageSlot& slot) {
    visited.push_back(slot.rank);
    slots.give_back(slot);
  });
  EXPECT_EQ(visited, (std::vector<std::uint32_t>{3, 253, 503, 753}));
  EXPECT_TRUE(slots.none_in_use());
  slots.for_each([](MessageSlot&) { FAIL() << "none is in use"; });
  slots.trim();
  EXPECT_EQ(slots.size(), MessageSlots::kKept);
  std::set<MessageSlot*> again;
  for (std::size_t number = 0; number < MessageSlots::kKept; ++number) {
    again.insert(&slots.take(operation));
  }
  EXPECT_EQ(again.size(), MessageSlots::kKept);
  EXPECT_EQ(slots.size(), MessageSlots::kKept);
}

/// Number of sweeps for stale messages, on all ranks.
std::uint64_t sweeps(InprocRanks& ranks) {
  std::uint64_t count = 0;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    count += ranks.fabric().counters(rank).discards;
  }
  return count;
}

/// How often a rank or the network acts during an idle minute.
std::uint64_t actions_in_an_idle_minute(InprocRanks& ranks) {
  const transport::TimePoint end = ranks.now() + std::chrono::minutes(1);
  std::uint64_t actions = 0;
  ranks.run_until([&] { return ++actions != 0 && ranks.now() >= end; });
  return actions;
}

TEST(IdleProcess, SleepsAsEverWhenAGroupHasFailed) {
  InprocRanks ranks(3);
  const auto group = ranks.make_group("failed", {0, 1, 2});
  ranks.engine(0).abort_group(*group[0], Error(ErrorKind::kAborted, "the reason"));
  ranks.settle();
  const std::uint64_t before = sweeps(ranks);
  EXPECT_LT(actions_in_an_idle_minute(ranks), 2000U);
  EXPECT_EQ(sweeps(ranks), before);
}

TEST(IdleProcess, SleepsAsEverWhenAnOperationHasFailed) {
  InprocRanks ranks(3);
  std::vector<std::int64_t> values(3, 1);
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return gtopk::all_reduce(&values[rank], rank, DataType::kInt32);  // a mismatch
  });
  for (const SharedEnding& ending : endings) {
    EXPECT_FALSE(ending->good());
  }
  ranks.settle();
  const std::uint64_t before = sweeps(ranks);
  EXPECT_LT(actions_in_an_idle_minute(ranks), 2000U);
  EXPECT_EQ(sweeps(ranks), before);
}

TEST(RemovedGroup, ThatEndedInOrderIsNotSweptFor) {
  InprocRanks ranks(2);
  for (std::uint32_t number = 0; number < 50; ++number) {
    const auto group = ranks.make_group("one of many", {0, 1});
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.engine(rank).remove_group(*group[rank]);
    }
  }
  ranks.settle();
  const std::uint64_t before = sweeps(ranks);
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(support::group_works(ranks), "");
    ranks.run_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(sweeps(ranks), before);
}

// A later group with the same id must not find what nobody received before its group ended.
TEST(RemovedGroup, TakesItsUnreceivedMessagesWithIt) {
  for (const std::size_t bytes : {10UL, 100'000UL}) {
    InprocRanks ranks(2, {.eager_below = std::size_t{1} << 30U});
    auto group = ranks.make_group("first", {0, 1});
    const reference::Bytes lost(bytes, std::byte{1});
    const SharedEnding sent = ranks.submit(0, group[0], gtopk::send(lost, 1, 7));
    ranks.run_all();
    EXPECT_TRUE(sent->good());
    ranks.settle();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.engine(rank).remove_group(*group[rank]);
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.next_group_is(rank, group[rank]->id());
    }
    group = ranks.make_group("second", {0, 1});
    const reference::Bytes data(bytes, std::byte{2});
    reference::Bytes buffer(bytes);
    const SharedEnding taken = ranks.submit(0, group[0], gtopk::send(data, 1, 7));
    const SharedEnding received = ranks.submit(1, group[1], gtopk::recv(buffer, 0, 7));
    ranks.run_all();
    EXPECT_TRUE(taken->good()) << taken->text();
    ASSERT_TRUE(received->good()) << received->text();
    EXPECT_TRUE(buffer == data);
    EXPECT_TRUE(ranks.close().empty());
  }
}

/// How long each wait lasts, for waits that start after these gaps and are in vain.
std::vector<std::int64_t> waits(const std::vector<std::int64_t>& gaps) {
  using std::chrono::milliseconds;
  engine::SharedDeadline shared_deadline;
  transport::TimePoint now{std::chrono::hours(1)};
  std::vector<std::int64_t> waited;
  for (const std::int64_t gap : gaps) {
    now += milliseconds(gap);
    const transport::TimePoint until =
        std::max(now, shared_deadline.begin(now, milliseconds(2000)));
    waited.push_back(std::chrono::duration_cast<milliseconds>(until - now).count());
    now = until;
    shared_deadline.end(now, true);
  }
  return waited;
}

TEST(SharedDeadline, IsSharedByThoseThatFollowEachOther) {
  EXPECT_EQ(waits({0, 0, 1, 99, 100, 100}), (std::vector<std::int64_t>{2000, 0, 0, 0, 0, 0}));
  EXPECT_EQ(waits({0, 101, 50}), (std::vector<std::int64_t>{2000, 2000, 0}));
}

TEST(SharedDeadline, IsWhatIsLeftOfItForThoseThatComeInTheMeantime) {
  using std::chrono::milliseconds;
  engine::SharedDeadline shared_deadline;
  const transport::TimePoint start{std::chrono::hours(1)};
  EXPECT_EQ(shared_deadline.begin(start, milliseconds(2000)), start + milliseconds(2000));
  EXPECT_EQ(shared_deadline.begin(start + milliseconds(500), milliseconds(2000)),
            start + milliseconds(2000));
  shared_deadline.end(start + milliseconds(2000), true);
  shared_deadline.end(start + milliseconds(2000), true);
  EXPECT_EQ(shared_deadline.begin(start + milliseconds(2050), milliseconds(2000)),
            start + milliseconds(2000));
}

TEST(SharedDeadline, OfOneThatEndedInTimeIsNotTakenFromTheNext) {
  using std::chrono::milliseconds;
  engine::SharedDeadline shared_deadline;
  transport::TimePoint now{std::chrono::hours(1)};
  for (int round = 0; round < 5; ++round) {
    now += milliseconds(500);
    EXPECT_EQ(shared_deadline.begin(now, milliseconds(2000)), now + milliseconds(2000));
    now += milliseconds(500);
    shared_deadline.end(now, false);
  }
}

}  // namespace
}  // namespace gtopk
