// Engine: a rank that is killed, stopped, silent or late. Every other rank gets an error that names
// it, its host, the operation and the sequence number: at once if the network notices, otherwise at
// the operation's timeout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using transport::inproc::Death;
using transport::inproc::FabricOptions;

constexpr transport::Duration kTimeout = std::chrono::seconds(10);

FabricOptions late_by_20us(std::uint64_t seed) {
  return support::network(seed, std::chrono::microseconds(20));
}

/// What a rank runs as operation number `which`, on memory of its own.
struct Work {
  explicit Work(std::uint32_t ranks) {
    problem = reference::random_case(ranks, DataType::kFloat32, ranks, "gtopk").problem;
    // Lists of 24 kB: two such operations in a row are paced, one after the other.
    long_lists.d = 9000;
    long_lists.options.k = 3000;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      reference::Input input{reference::zeros(DataType::kFloat32, long_lists.d), std::nullopt};
      for (std::uint64_t i = 0; i < long_lists.d; ++i) {
        reference::store(DataType::kFloat32, input.gradient, i,
                         static_cast<double>(i % 101 + rank));
      }
      long_lists.ranks.push_back(std::move(input));
      long_tensors.push_back(support::tensor_of(long_lists, rank));
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      tensors.push_back(support::tensor_of(problem, rank));
      large.emplace_back(80000);
      buffers.emplace_back(ranks, reference::Bytes(2000));
    }
  }
  /// gtopk, gtopk-tree and topk; every other time hierarchical and gtopk-placed replace the last
  /// two.
  static std::string name_of(std::uint64_t place, std::uint64_t turn) {
    if (place == 0 || turn % 2 == 0) {
      return reference::algorithms()[place];
    }
    return place == 1 ? "hierarchical" : "gtopk-placed";
  }
  engine::OperationSpec make(std::uint32_t rank, std::uint64_t which) {
    engine::OperationSpec spec;
    switch (which % 9) {
      case 0:
      case 1:
      case 2:
        problem.options.algorithm = name_of(which % 9, which / 9);
        spec = support::sparse_all_reduce(problem, tensors[rank]);
        break;
      case 3:
        spec = gtopk::all_reduce(large[rank].data(), large[rank].size() / 4, DataType::kInt32);
        break;
      case 4:
        spec = gtopk::broadcast(large[rank], 0);
        break;
      case 5:
        spec = gtopk::all_gather(buffers[rank]);
        break;
      case 6:
      case 7:
        long_lists.options.algorithm = name_of(which % 9 - 6, which / 9);
        spec = support::sparse_all_reduce(long_lists, long_tensors[rank]);
        break;
      default:
        spec = gtopk::barrier();
        break;
    }
    spec.timeout = kTimeout;
    return spec;
  }
  reference::Problem problem;
  std::vector<support::Tensor> tensors;
  reference::Problem long_lists;
  std::vector<support::Tensor> long_tensors;
  std::vector<reference::Bytes> large;
  std::vector<std::vector<reference::Bytes>> buffers;
};

void expect_names(const SharedEnding& ending, std::uint32_t victim, std::uint64_t sequence,
                  const std::string& operation) {
  ASSERT_TRUE(ending->error.has_value()) << ending->text();
  const std::string text = ending->text();
  EXPECT_EQ(ending->error->kind(), ErrorKind::kPeerFailed) << text;
  EXPECT_NE(text.find(fmt::format("rank {} (host node{}, pid {})", victim, victim, 1000 + victim)),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(fmt::format("{} #{}", operation, sequence)), std::string::npos) << text;
}

/// Starts operation 0 on all ranks, interrupts it at a random point with `strike`, then runs
/// operation 1 on the others: all of these must fail.
void strike_in_the_middle(std::uint64_t seed,
                          const std::function<void(InprocRanks&, std::uint32_t)>& strike,
                          bool at_once) {
  reference::Random random(seed);
  const auto size = static_cast<std::uint32_t>(2 + seed % 7);
  const auto victim = static_cast<std::uint32_t>(random.below(size));
  InprocRanks ranks(size, late_by_20us(seed));
  Work work(size);
  std::vector<SharedEnding> first(size);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    first[rank] = ranks.submit(rank, work.make(rank, seed));
  }
  std::uint64_t steps = random.below(1 + 60ULL * size);
  ranks.run_until([&] { return steps-- == 0; });
  strike(ranks, victim);
  const transport::TimePoint struck = ranks.now();
  Work more(size);
  std::vector<SharedEnding> second(size);
  std::vector<std::string> names(size);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    if (rank == victim) {
      continue;
    }
    engine::OperationSpec spec = more.make(rank, seed + 1);
    names[rank] = spec.name;
    second[rank] = ranks.submit(rank, std::move(spec));
  }
  ranks.run_all();
  const transport::Duration waited = ranks.now() - struck;
  if (at_once) {
    EXPECT_LT(waited, std::chrono::seconds(1));
  } else {
    EXPECT_LT(waited, kTimeout + engine::Probes::kLongestProbe + std::chrono::milliseconds(100));
  }
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    if (rank == victim) {
      continue;
    }
    ASSERT_TRUE(first[rank]->ended);
    if (first[rank]->error) {
      expect_names(first[rank], victim, 1, work.make(rank, seed).name);
    }
    expect_names(second[rank], victim, 2, names[rank]);
  }
  ranks.settle();
}

TEST(DeadRank, NoticedByTheNetworkFailsEveryOtherRankAtOnce) {
  for (std::uint64_t seed = 0; seed < support::seeds(150); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    strike_in_the_middle(
        seed, [](InprocRanks& ranks, std::uint32_t rank) { ranks.kill(rank, Death::kNoticed); },
        true);
    if (HasFailure()) {
      return;
    }
  }
}

TEST(DeadRank, ThatNobodyNoticesFailsEveryOtherRankAtTheTimeout) {
  for (std::uint64_t seed = 0; seed < support::seeds(100); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    strike_in_the_middle(
        seed, [](InprocRanks& ranks, std::uint32_t rank) { ranks.kill(rank, Death::kSilent); },
        false);
    if (HasFailure()) {
      return;
    }
  }
}

TEST(StoppedRank, FailsEveryOtherRankAtTheTimeout) {
  for (std::uint64_t seed = 0; seed < support::seeds(100); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    strike_in_the_middle(
        seed, [](InprocRanks& ranks, std::uint32_t rank) { ranks.freeze(rank); }, false);
    if (HasFailure()) {
      return;
    }
  }
}

TEST(StoppedRank, ResumedBeforeTimeout_OperationSucceeds) {
  for (std::uint64_t seed = 0; seed < support::seeds(20); ++seed) {
    const std::uint32_t size = 2 + seed % 5;
    InprocRanks ranks(size, late_by_20us(seed));
    std::vector<std::int64_t> values(size, 3);
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      engine::OperationSpec spec = gtopk::all_reduce(&values[rank], 1, DataType::kInt64);
      spec.timeout = kTimeout;
      endings.push_back(ranks.submit(rank, std::move(spec)));
    }
    ranks.freeze(0);
    ranks.run_for(kTimeout / 2);
    ranks.thaw(0);
    ranks.run_all();
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
      EXPECT_EQ(values[rank], 3 * static_cast<std::int64_t>(size));
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

// It answers the probe late, so it is alive, but the group has failed for it, too.
TEST(StoppedRank, ThatGoesOnTooLateHearsThatTheGroupIsOver) {
  for (std::uint64_t seed = 0; seed < support::seeds(20); ++seed) {
    const std::uint32_t size = 2 + seed % 5;
    InprocRanks ranks(size, late_by_20us(seed));
    std::vector<std::int64_t> values(size, 3);
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      engine::OperationSpec spec = gtopk::all_reduce(&values[rank], 1, DataType::kInt64);
      spec.timeout = kTimeout;
      endings.push_back(ranks.submit(rank, std::move(spec)));
    }
    ranks.freeze(1);
    ranks.run_all();
    ranks.thaw(1);
    // It fails unless all it needed had already arrived.
    ranks.run_until([&] { return endings[1]->ended; });
    ranks.settle();
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (rank != 1) {
        expect_names(endings[rank], 1, 1, "all_reduce");
      }
    }
    if (endings[1]->error) {
      EXPECT_EQ(endings[1]->error->kind(), ErrorKind::kPeerFailed) << endings[1]->text();
    }
    const SharedEnding next = ranks.submit(1, gtopk::all_reduce(&values[1], 1, DataType::kInt64));
    ranks.run_all();
    EXPECT_TRUE(next->error.has_value());
  }
}

engine::OperationSpec lasting(engine::OperationSpec spec) {
  spec.timeout = std::chrono::hours(1);
  return spec;
}

TEST(LateRank, IsNamedByTheTimeoutOfTheOthers) {
  for (std::uint32_t size = 2; size <= 8; ++size) {
    for (std::uint32_t late = 0; late < size; ++late) {
      InprocRanks ranks(size, late_by_20us(size + late));
      ASSERT_EQ(support::group_works(ranks), "");
      const transport::TimePoint called = ranks.now();
      Work work(size);
      std::vector<SharedEnding> endings;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        if (rank != late) {
          endings.push_back(ranks.submit(rank, work.make(rank, size + late)));
        }
      }
      ranks.run_all();
      EXPECT_GE(ranks.now() - called, kTimeout);
      EXPECT_LT(ranks.now() - called, kTimeout + std::chrono::milliseconds(100));
      for (const SharedEnding& ending : endings) {
        ASSERT_TRUE(ending->error.has_value());
        EXPECT_EQ(ending->error->kind(), ErrorKind::kTimeout) << ending->text();
        const std::string who = fmt::format(
            "rank {} (host node{}, pid {}) never entered {} #2; its last was all_reduce #1, which "
            "has ended",
            late, late, 1000 + late, work.make(0, size + late).name);
        EXPECT_NE(ending->text().find(who), std::string::npos) << ending->text();
      }
      // When it calls at last, it gets the same error.
      ranks.settle();
      const SharedEnding last = ranks.submit(late, work.make(late, size + late));
      ranks.run_all();
      ASSERT_TRUE(last->error.has_value());
      EXPECT_NE(last->text().find("never entered"), std::string::npos) << last->text();
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

// A barrier with a short timeout behind an operation with a long one.
TEST(LateRank, IsNamedWhenTheOperationThatWaitsTimesOutFirst) {
  InprocRanks ranks(3);
  std::vector<std::int64_t> values(3);
  std::vector<SharedEnding> endings;
  for (const std::uint32_t rank : {0U, 1U}) {
    engine::OperationSpec slow = gtopk::all_reduce(&values[rank], 1, DataType::kInt64);
    slow.timeout = std::chrono::hours(1);
    endings.push_back(ranks.submit(rank, std::move(slow)));
    engine::OperationSpec barrier = gtopk::barrier();
    barrier.timeout = kTimeout;
    endings.push_back(ranks.submit(rank, std::move(barrier)));
  }
  ranks.run_all();
  EXPECT_LT(ranks.now() - transport::TimePoint{}, kTimeout + std::chrono::seconds(3));
  for (const SharedEnding& ending : endings) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kTimeout) << ending->text();
    EXPECT_NE(ending->text().find("rank 2 (host node2"), std::string::npos) << ending->text();
  }
}

TEST(LateRank, EndsTheGroupAndItsMessagesSaySo) {
  InprocRanks ranks(3);
  reference::Bytes buffer(10);
  const SharedEnding received = ranks.submit(2, lasting(gtopk::recv(buffer, 1, 7)));
  engine::OperationSpec barrier = gtopk::barrier();
  barrier.timeout = kTimeout;
  const SharedEnding late = ranks.submit(0, std::move(barrier));
  ranks.run_all();
  const SharedEnding next = ranks.submit(2, gtopk::recv(buffer, 1, 7));
  ranks.run_all();
  for (const SharedEnding& ending : {late, received, next}) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kTimeout) << ending->text();
    EXPECT_TRUE(ending->error->ended_group()) << ending->text();
  }
}

/// Ranks 0 and 1 of three time out in the group's all-reduce #2 while rank 2 runs `instead` in
/// `place`, or nothing; returns the errors' texts.
std::vector<std::string> told_of_rank_2(InprocRanks& ranks,
                                        const std::function<SharedEnding(InprocRanks&)>& instead) {
  EXPECT_EQ(support::group_works(ranks), "");
  const SharedEnding other = instead(ranks);
  std::vector<std::int64_t> values(2);
  std::vector<SharedEnding> endings;
  for (const std::uint32_t rank : {0U, 1U}) {
    engine::OperationSpec spec = gtopk::all_reduce(&values[rank], 1, DataType::kInt64);
    spec.timeout = kTimeout;
    endings.push_back(ranks.submit(rank, std::move(spec)));
  }
  ranks.run_until([&] { return endings[0]->ended && endings[1]->ended; });
  ranks.settle();
  other->ignore("it waits for what nobody does");
  return {endings[0]->text(), endings[1]->text()};
}

TEST(LateRank, IsSaidToBeInAMessageThatItWaitsFor) {
  InprocRanks ranks(3);
  reference::Bytes buffer(10);
  const auto texts = told_of_rank_2(
      ranks, [&](InprocRanks& all) { return all.submit(2, lasting(gtopk::recv(buffer, 0, 7))); });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, ::testing::HasSubstr("of group 'default'"));
    EXPECT_THAT(text, ::testing::HasSubstr("rank 2 (host node2, pid 1002) never entered "
                                           "all_reduce #2; it is in recv(from 0, tag 7)"));
  }
}

TEST(LateRank, IsSaidToBeInACollectiveOfAnotherGroup) {
  InprocRanks ranks(3);
  const auto pair = ranks.make_group("pair", {0, 2});
  const auto texts = told_of_rank_2(
      ranks, [&](InprocRanks& all) { return all.submit(2, pair[1], lasting(gtopk::barrier())); });
  for (const std::string& text : texts) {
    EXPECT_THAT(text,
                ::testing::HasSubstr("rank 2 (host node2, pid 1002) never entered all_reduce #2; "
                                     "it is in barrier #1 of group 'pair' on rank 1"));
  }
}

TEST(LateRank, WithoutAnyCollective_ErrorSaysSo) {
  InprocRanks ranks(2);
  std::int64_t value = 0;
  engine::OperationSpec spec = gtopk::all_reduce(&value, 1, DataType::kInt64);
  spec.timeout = kTimeout;
  const SharedEnding ending = ranks.submit(0, std::move(spec));
  ranks.run_all();
  ASSERT_TRUE(ending->error.has_value());
  EXPECT_THAT(ending->text(),
              ::testing::HasSubstr("rank 1 (host node1, pid 1001) never entered all_reduce #1; it "
                                   "has called no collective of the group yet"));
}

TEST(LateRank, SeveralOfThemAreNamedFourInFull) {
  InprocRanks ranks(8);
  std::int64_t value = 0;
  engine::OperationSpec spec = gtopk::all_reduce(&value, 1, DataType::kInt64);
  spec.timeout = kTimeout;
  const SharedEnding ending = ranks.submit(0, std::move(spec));
  ranks.run_all();
  ASSERT_TRUE(ending->error.has_value());
  for (const char* const part :
       {"rank 1 (host", "rank 4 (host", "rank 5, 6, 7 never entered it either"}) {
    EXPECT_THAT(ending->text(), ::testing::HasSubstr(part));
  }
}

TEST(AbortedGroup, SaysWhomEachOperationWasWaitingFor) {
  InprocRanks ranks(2);
  std::int64_t value = 0;
  const SharedEnding ending = ranks.submit(0, gtopk::all_reduce(&value, 1, DataType::kInt64));
  ranks.run_for(std::chrono::milliseconds(1));
  ranks.engine(0).abort_group(*ranks.group(0), Error(ErrorKind::kAborted, "enough"));
  ranks.run_until([&] { return ending->ended; });
  ASSERT_TRUE(ending->error.has_value());
  EXPECT_EQ(ending->text(),
            "all_reduce #1 of group 'default' on rank 0: enough; it was waiting for rank 1 (host "
            "node1, pid 1001)");
}

TEST(LateRank, OfAPointToPointTransferFailsThatTransferAlone) {
  InprocRanks ranks(2);
  reference::Bytes buffer(10);
  engine::OperationSpec spec = gtopk::recv(buffer, 1, 7);
  spec.timeout = kTimeout;
  const SharedEnding ending = ranks.submit(0, std::move(spec));
  ranks.run_all();
  ASSERT_TRUE(ending->error.has_value());
  EXPECT_EQ(ending->error->kind(), ErrorKind::kTimeout) << ending->text();
  EXPECT_EQ(ending->text(),
            "recv(from 1, tag 7) of group 'default' on rank 0: timed out after 10 s: rank 1 (host "
            "node1, pid 1001) is alive and has made no matching call; it has called no collective "
            "of the group "
            "yet");
  EXPECT_EQ(support::group_works(ranks), "");
  EXPECT_TRUE(ranks.close().empty());
}

TEST(DeadRank, EndsOnlyTheGroupsThatItIsIn) {
  for (std::uint64_t seed = 0; seed < support::seeds(20); ++seed) {
    InprocRanks ranks(5, late_by_20us(seed));
    const auto pair = ranks.make_group("pair", {1, 3});
    ASSERT_EQ(support::group_works(ranks), "");
    ranks.kill(4, Death::kNoticed);
    Work work(5);
    const auto endings = ranks.run([&](std::uint32_t rank) { return work.make(rank, seed); });
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(endings[rank]->error.has_value());
    }
    std::vector<std::int64_t> values = {1, 2};
    const SharedEnding one =
        ranks.submit(1, pair[0], gtopk::all_reduce(&values[0], 1, DataType::kInt64));
    const SharedEnding other =
        ranks.submit(3, pair[1], gtopk::all_reduce(&values[1], 1, DataType::kInt64));
    ranks.run_all();
    EXPECT_TRUE(one->good()) << one->text();
    EXPECT_TRUE(other->good()) << other->text();
    EXPECT_EQ(values, (std::vector<std::int64_t>{3, 3}));
  }
}

}  // namespace
}  // namespace gtopk
