// Engine: every process numbers its groups independently, numbers are reused, and what an earlier
// group of a number left in the network never reaches a later one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "src/engine/group_ids.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/point_to_point.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/inproc_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::network;
using support::SharedEnding;
using testing::HasSubstr;

TEST(GroupIds, ReturnedId_IsReusedAfterAllOthers) {
  engine::GroupIds ids;
  std::set<std::uint32_t> seen;
  for (std::uint32_t i = 0; i < transport::kMaxGroups; ++i) {
    const auto id = ids.take();
    ASSERT_TRUE(id.has_value());
    EXPECT_TRUE(seen.insert(*id).second) << *id;
    ids.give_back(*id);
  }
  EXPECT_EQ(ids.take(), 0U);
}

TEST(GroupIds, AreNeverGivenTwiceAndRunOutAtTheLimit) {
  engine::GroupIds ids;
  std::set<std::uint32_t> seen;
  for (std::uint32_t i = 0; i < transport::kMaxGroups; ++i) {
    seen.insert(ids.take().value());
  }
  EXPECT_EQ(seen.size(), transport::kMaxGroups);
  EXPECT_FALSE(ids.take().has_value());
  ids.give_back(1234);
  EXPECT_EQ(ids.take(), 1234U);
}

/// One all_reduce of ones in the group, on all members.
void expect_works(InprocRanks& ranks, const std::vector<std::shared_ptr<engine::Group>>& groups,
                  const std::vector<std::uint32_t>& members) {
  std::vector<std::int64_t> values(members.size(), 1);
  std::vector<SharedEnding> endings;
  for (std::size_t place = 0; place < members.size(); ++place) {
    endings.push_back(
        ranks.submit(members[place], groups[place],
                     gtopk::all_reduce(&values[place], 1, DataType::kInt64, ReduceOp::kSum)));
  }
  ranks.run_all();
  for (std::size_t place = 0; place < members.size(); ++place) {
    ASSERT_TRUE(endings[place]->good()) << endings[place]->text();
    ASSERT_EQ(values[place], static_cast<std::int64_t>(members.size()));
  }
}

void remove(InprocRanks& ranks, const std::vector<std::shared_ptr<engine::Group>>& groups,
            const std::vector<std::uint32_t>& members) {
  ranks.settle();
  for (std::size_t place = 0; place < members.size(); ++place) {
    ranks.engine(members[place]).remove_group(*groups[place]);
  }
}

TEST(Groups, FiveThousandInTurnAndBesideOthers) {
  InprocRanks ranks(3, network(1));
  const std::vector<std::vector<std::uint32_t>> members = {{0, 1}, {2, 0}, {1, 2}, {2, 1, 0}};
  struct Alive {
    std::vector<std::shared_ptr<engine::Group>> groups;
    std::vector<std::uint32_t> members;
  };
  std::deque<Alive> alive;
  for (std::size_t number = 0; number < 5000; ++number) {
    const auto& who = members[number % members.size()];
    alive.push_back({ranks.make_group("g", who), who});
    if (number % 50 == 0) {
      expect_works(ranks, alive.back().groups, who);
    }
    // Some live long, most are removed soon.
    if (number % 7 != 0 || alive.size() > 300) {
      remove(ranks, alive.front().groups, alive.front().members);
      alive.pop_front();
    }
  }
  for (const Alive& each : alive) {
    expect_works(ranks, each.groups, each.members);
  }
  EXPECT_TRUE(ranks.close().empty());
}

// Rank 1 has destroyed the first group, and its number was given to another one, in which rank 0 is
// too.
TEST(ReusedGroupId, FailureOfOldGroup_LeavesNewGroupWorking) {
  for (const bool times_out : {true, false}) {
    InprocRanks ranks(2);
    const auto earlier = ranks.make_group("earlier", {0, 1});
    expect_works(ranks, earlier, {0, 1});
    const std::uint32_t number = earlier[1]->id();
    ranks.engine(1).remove_group(*earlier[1]);
    ranks.next_group_is(1, number);
    const auto later = ranks.make_group("later", {0, 1});
    ASSERT_EQ(later[1]->id(), number);

    std::int64_t value = 1;
    const SharedEnding alone =
        ranks.submit(0, earlier[0], gtopk::all_reduce(&value, 1, DataType::kInt64));
    if (times_out) {
      ranks.run_until([&] { return alone->ended; });
      EXPECT_THAT(alone->text(), HasSubstr("has destroyed the group"));
    } else {
      ranks.run_for(std::chrono::milliseconds(1));
      ranks.engine(0).remove_group(*earlier[0]);
      ranks.run_until([&] { return alone->ended; });
      EXPECT_THAT(alone->text(), HasSubstr("was destroyed"));
    }
    expect_works(ranks, later, {0, 1});
    EXPECT_FALSE(later[0]->failure || later[1]->failure);
  }
}

TEST(Groups, MoreThanTheLimitAtATimeAreAnErrorAndTheOthersWorkOn) {
  InprocRanks ranks(2, network(2));
  engine::Engine& engine = ranks.engine(0);
  std::vector<std::uint32_t> held;
  for (std::uint32_t i = 1; i < transport::kMaxGroups; ++i) {
    held.push_back(engine.reserve_group_id());
  }
  try {
    static_cast<void>(engine.reserve_group_id());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("4096 groups at a time"));
  }
  expect_works(ranks, {ranks.group(0), ranks.group(1)}, {0, 1});
  engine.release_group_id(held[17]);
  EXPECT_EQ(engine.reserve_group_id(), held[17]);
  EXPECT_TRUE(ranks.close().empty());
}

engine::OperationSpec send(std::int64_t& value) {
  engine::OperationSpec spec;
  spec.name = "send";
  spec.ordering = Ordering::kUnnumbered;
  spec.body = [&value](engine::GroupView& view) {
    return engine::send(view, 1, 5, std::as_bytes(std::span(&value, 1)));
  };
  return spec;
}

engine::OperationSpec receive(std::int64_t& value) {
  engine::OperationSpec spec;
  spec.name = "recv";
  spec.ordering = Ordering::kUnnumbered;
  spec.body = [&value](engine::GroupView& view) {
    return engine::recv(view, 0, 5, std::as_writable_bytes(std::span(&value, 1)));
  };
  return spec;
}

TEST(Groups, UnreceivedMessages_NeverReachNextGroupOfSameId) {
  for (std::uint64_t seed = 0; seed < support::seeds(8); ++seed) {
    InprocRanks ranks(2, network(seed));
    auto groups = ranks.make_group("first", {0, 1});
    const std::uint32_t number = groups[1]->id();
    std::int64_t old = 666;
    const SharedEnding lost = ranks.submit(0, groups[0], send(old));
    ranks.run_for(std::chrono::milliseconds(5));
    // A message that nobody has taken yet is discarded with its group.
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.engine(rank).remove_group(*groups[rank]);
    }
    ranks.settle();
    ranks.next_group_is(1, number);
    groups = ranks.make_group("second", {0, 1});
    ASSERT_EQ(groups[1]->id(), number);
    std::int64_t sent = 7;
    std::int64_t got = 0;
    const SharedEnding taken = ranks.submit(0, groups[0], send(sent));
    const SharedEnding ending = ranks.submit(1, groups[1], receive(got));
    ranks.run_until([&] { return ending->ended && taken->ended; });
    EXPECT_TRUE(ending->good()) << ending->text();
    EXPECT_TRUE(taken->good()) << taken->text();
    EXPECT_EQ(got, 7);
    lost->ignore("it may have been on its way or not when its group was removed");
  }
}

TEST(Groups, NoticeForRemovedGroup_DoesNotEndNextOfSameId) {
  InprocRanks ranks(2, network(0));
  auto groups = ranks.make_group("first", {0, 1});
  const std::uint32_t number = groups[1]->id();
  ranks.engine(1).remove_group(*groups[1]);
  ranks.engine(0).abort_group(*groups[0], Error(ErrorKind::kAborted, "the first one's end"));
  ranks.settle();
  ranks.engine(0).remove_group(*groups[0]);
  ranks.next_group_is(1, number);
  groups = ranks.make_group("second", {0, 1});
  ASSERT_EQ(groups[1]->id(), number);
  expect_works(ranks, groups, {0, 1});
  EXPECT_TRUE(ranks.close().empty());
}

}  // namespace
}  // namespace gtopk
