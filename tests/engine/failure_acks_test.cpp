// Engine: a rank that leaves after a failure that another member has not heard of yet. That member
// only sees it end, and must not take it for the cause.
#include <gtest/gtest.h>

#include <vector>

#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using support::uneven_network;

/// What ranks 2 and 3 tell rank 1 arrives late, but within the time for which the others stay.
void let_rank_1_hear_after(InprocRanks& ranks, transport::Duration delay) {
  ranks.fabric().set_faults([delay](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    const auto kind = static_cast<transport::TagKind>(sent.tag >> 62U);
    if (kind == transport::TagKind::kControl && sent.destination == 1 && sent.source >= 2) {
      fault.delay = delay;
    }
    return fault;
  });
}

// Rank 0 has no endpoint to rank 1, so it cannot tell it anything.
TEST(FailureAcks, OfADeathComeFromEveryMemberBeforeAnyOfThemLeaves) {
  for (std::uint64_t seed = 0; seed < support::seeds(20); ++seed) {
    InprocRanks ranks(4, uneven_network(seed));
    let_rank_1_hear_after(ranks, std::chrono::seconds(1));
    reference::Bytes from_3(100);
    reference::Bytes from_0(100);
    const SharedEnding first = ranks.submit(2, gtopk::recv(from_3, 3, 7));
    ranks.run_for(std::chrono::milliseconds(1));
    ranks.kill(3, transport::inproc::Death::kNoticed);
    ranks.run_until([&] { return ranks.group(0)->failure.has_value(); });
    const SharedEnding second = ranks.submit(1, gtopk::recv(from_0, 0, 7));
    ranks.leave({0, 2});
    ranks.run_all();
    for (const SharedEnding& ending : {first, second}) {
      ASSERT_TRUE(ending->error.has_value());
      EXPECT_NE(ending->text().find("rank 3 (host node3, pid 1003) is gone"), std::string::npos)
          << "seed " << seed << ": " << ending->text();
    }
  }
}

/// With gtopk-tree and four ranks, 1 talks only to 0, and 3 only to 2.
engine::OperationSpec four_rank_call(std::vector<float>& tensor) {
  sparse::SparseCall call;
  call.tensor = tensor.data();
  call.d = tensor.size();
  call.options = {.k = 3, .algorithm = "gtopk-tree"};
  return sparse::collective(call);
}

TEST(FailureAcks, Mismatch_ReachesSlowMemberBeforeOthersLeave) {
  for (std::uint64_t seed = 0; seed < support::seeds(20); ++seed) {
    InprocRanks ranks(4, uneven_network(seed));
    let_rank_1_hear_after(ranks, std::chrono::seconds(1));
    std::vector<std::vector<float>> tensors(4, std::vector<float>(10, 1.0F));
    tensors[3].resize(9);
    std::vector<SharedEnding> endings;
    for (const std::uint32_t rank : {2U, 3U}) {
      endings.push_back(ranks.submit(rank, four_rank_call(tensors[rank])));
    }
    ranks.run_until([&] {
      return endings[0]->ended && endings[1]->ended && ranks.group(0)->aborted.contains(1);
    });
    endings.push_back(ranks.submit(1, four_rank_call(tensors[1])));
    ranks.leave({0, 2, 3});
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->error.has_value());
      EXPECT_EQ(ending->error->kind(), ErrorKind::kMismatch)
          << "seed " << seed << ": " << ending->text();
      EXPECT_NE(ending->text().find("d=9,"), std::string::npos) << ending->text();
    }
  }
}

// The endpoint to the rank that told of it was closed by force: nothing will come over it.
TEST(FailureAcks, OfATellerThatWasGivenUpAreNotAwaited) {
  InprocRanks ranks(2);
  ranks.engine(0).abort_group(*ranks.group(0), Error(ErrorKind::kAborted, "the reason"));
  ranks.run_until([&] { return ranks.group(1)->failure.has_value(); });
  ranks.freeze(0);
  ASSERT_FALSE(ranks.engine(1).all_have_heard());
  ranks.fabric().port(1).give_up(ranks.group(1)->peer(0));
  const transport::TimePoint before = ranks.now();
  ranks.run_until([&] { return ranks.engine(1).all_have_heard(); });
  EXPECT_LT(ranks.now() - before, std::chrono::seconds(1));
}

/// A group of ranks 0 and 1 that fails on rank 1 before rank 0 has made it, as its meeting ends
/// later there.
TEST(FailureAcks, FailureBeforeGroupExists_IsNotAwaitedAgain) {
  InprocRanks ranks(2);
  ASSERT_EQ(support::group_works(ranks), "");
  const auto spec_of = [&](std::uint32_t rank, std::vector<std::uint32_t> ids) {
    engine::GroupSpec spec;
    spec.name = "late";
    spec.rank = rank;
    spec.ids = std::move(ids);
    spec.hosts = ranks.hosts();
    for (const std::uint32_t member : {0U, 1U}) {
      spec.cards.push_back(ranks.fabric().port(member).card());
    }
    return spec;
  };
  const std::vector<std::uint32_t> ids = {ranks.engine(0).reserve_group_id(),
                                          ranks.engine(1).reserve_group_id()};
  const auto there = ranks.engine(1).add_group(spec_of(1, ids));
  ranks.engine(1).abort_group(*there, Error(ErrorKind::kAborted, "the reason"));
  ranks.leave(1);
  ranks.run_for(std::chrono::seconds(3));
  // Another group is about to be made, which must not make this rank forget it.
  const std::uint32_t another = ranks.engine(0).reserve_group_id();
  const auto here = ranks.engine(0).add_group(spec_of(0, ids));
  ranks.engine(0).release_group_id(another);
  ASSERT_TRUE(here->failure.has_value());
  const transport::TimePoint before = ranks.now();
  ranks.run_until([&] { return ranks.engine(0).all_have_heard(); });
  EXPECT_LT(ranks.now() - before, std::chrono::seconds(1));
}

// A stopped rank answers nobody: the others do not stay for it.
TEST(FailureAcks, AreNotAwaitedForLong) {
  InprocRanks ranks(3);
  ranks.freeze(1);
  ranks.engine(0).abort_group(*ranks.group(0), Error(ErrorKind::kAborted, "the reason"));
  ranks.run_until([&] { return ranks.group(2)->failure.has_value(); });
  const transport::TimePoint before = ranks.now();
  ranks.leave(2);
  // And as long again for rank 0, which stays.
  EXPECT_LT(ranks.now() - before, engine::FailureAcks::kBound + std::chrono::milliseconds(2100));
}

}  // namespace
}  // namespace gtopk
