// Collectives: all-reduce, broadcast, all-gather and barrier over the in-process transport, for
// many ranks, sizes, roots and arrival orders.
#include <gtest/gtest.h>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "tests/collectives/definitions.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::uneven_network;

/// Runs it and compares every rank with the definition, bit for bit.
void expect_all_reduce(std::uint32_t size, std::uint64_t d, DataType type, ReduceOp op,
                       std::uint64_t seed) {
  reference::Random random(seed);
  std::vector<reference::Bytes> data;
  while (data.size() < size) {
    data.push_back(test::random_elements(random, d, type));
  }
  const reference::Bytes expected =
      test::defined_all_reduce(test::multiplied(data, type, op), d, type, op);
  InprocRanks ranks(size, uneven_network(seed));
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return gtopk::all_reduce(data[rank].data(), d, type, op, test::factor_of(rank, op));
  });
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
    ASSERT_TRUE(data[rank] == expected) << "P=" << size << " d=" << d << " " << to_string(type)
                                        << " " << to_string(op) << " seed " << seed;
  }
  ASSERT_TRUE(ranks.close().empty());
}

class Ranks : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Ranks, AllReduceIsItsDefinitionForEveryTypeAndOperation) {
  for (const DataType type : reference::named_values<DataType>()) {
    for (const ReduceOp op : reference::named_values<ReduceOp>()) {
      try {
        collectives::check_reduction(type, op);
      } catch (const Error&) {
        continue;
      }
      const auto seed = 1 + static_cast<unsigned>(type) + 16U * static_cast<unsigned>(op);
      expect_all_reduce(GetParam(), 37, type, op, seed);
    }
  }
}

TEST_P(Ranks, AllReduceAroundRingThreshold_EqualsDefinition) {
  const std::uint64_t last_small = collectives::kRecursiveDoublingBytes / 4;
  std::uint64_t seed = 1;
  for (const std::uint64_t d : {last_small - 1, last_small, last_small + 1, last_small + 5}) {
    expect_all_reduce(GetParam(), d, DataType::kFloat32, ReduceOp::kSum, seed++);
  }
}

TEST_P(Ranks, AllReduceIsItsDefinitionForFewElements) {
  for (const std::uint64_t d : {0, 1, 2, 3, 15, 17}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      expect_all_reduce(GetParam(), d, DataType::kFloat32, ReduceOp::kAvg, seed);
    }
  }
}

TEST_P(Ranks, EachRanksFactorGoesWithItsOwnInputAlsoInTheRing) {
  const std::uint64_t d = collectives::kRecursiveDoublingBytes / 2 + 3;
  expect_all_reduce(GetParam(), d, DataType::kBfloat16, ReduceOp::kPremulSum, 1);
}

// Chunks of several pieces, none of equal length.
TEST_P(Ranks, AllReduceIsItsDefinitionWhereChunksHaveManyPieces) {
  if (GetParam() > 4) {
    return;
  }
  const std::uint64_t d = 3 * collectives::kPieceBytes / 4 * GetParam() + 7;
  expect_all_reduce(GetParam(), d, DataType::kFloat32, ReduceOp::kSum, 5);
}

TEST_P(Ranks, BroadcastReachesEveryRankFromEveryRoot) {
  const std::uint32_t size = GetParam();
  for (std::uint32_t root = 0; root < size; ++root) {
    for (const std::size_t bytes : {0UL, 1UL, 5000UL, kShortBroadcast, kShortBroadcast + 1}) {
      std::vector<reference::Bytes> data(size, reference::Bytes(bytes));
      for (std::size_t i = 0; i < bytes; ++i) {
        data[root][i] = static_cast<std::byte>(i * 7 + root);
      }
      const reference::Bytes expected = data[root];
      InprocRanks ranks(size, uneven_network(root + bytes));
      const auto endings =
          ranks.run([&](std::uint32_t rank) { return gtopk::broadcast(data[rank], root); });
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
        ASSERT_TRUE(data[rank] == expected) << "P=" << size << " root " << root << " rank " << rank;
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

// The data goes to each rank once, with the headers by which the ranks agree: no message is added.
TEST_P(Ranks, AFewBytesAreBroadcastInTheMessagesOfABarrier) {
  const std::uint32_t size = GetParam();
  constexpr std::size_t kBytes = 1000;
  const auto sent = [size](const std::function<Collective(std::uint32_t)>& call) {
    InprocRanks ranks(size, uneven_network(1));
    for (const auto& ending : ranks.run(call)) {
      EXPECT_TRUE(ending->good()) << ending->text();
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>> counted;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const auto read = ranks.group(rank)->metrics.read();
      counted.emplace_back(read.messages_sent, read.bytes_sent);
    }
    EXPECT_TRUE(ranks.close().empty());
    return counted;
  };
  const auto barrier = sent([](std::uint32_t) { return gtopk::barrier(); });
  for (std::uint32_t root = 0; root < size; ++root) {
    std::vector<reference::Bytes> data(size, reference::Bytes(kBytes));
    const auto counted =
        sent([&](std::uint32_t rank) { return gtopk::broadcast(data[rank], root); });
    std::uint64_t extra = 0;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(counted[rank].first, barrier[rank].first) << "root " << root << " rank " << rank;
      extra += counted[rank].second - barrier[rank].second;
    }
    EXPECT_EQ(extra, (size - 1) * kBytes) << "root " << root;
  }
}

TEST_P(Ranks, AllGatherCollectsEveryRanksBytesInOrder) {
  const std::uint32_t size = GetParam();
  for (const std::size_t bytes : {0UL, 1UL, 3000UL}) {
    std::vector<std::vector<reference::Bytes>> data(
        size, std::vector<reference::Bytes>(size, reference::Bytes(bytes)));
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::size_t i = 0; i < bytes; ++i) {
        data[rank][rank][i] = static_cast<std::byte>(i + rank);
      }
    }
    InprocRanks ranks(size, uneven_network(bytes));
    const auto endings = ranks.run([&](std::uint32_t rank) {
      std::vector<std::span<std::byte>> buffers(data[rank].begin(), data[rank].end());
      return gtopk::all_gather(buffers);
    });
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
      for (std::uint32_t other = 0; other < size; ++other) {
        ASSERT_TRUE(data[rank][other] == data[other][other]) << "P=" << size;
      }
    }
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST_P(Ranks, NobodyLeavesABarrierBeforeTheLastHasEntered) {
  const std::uint32_t size = GetParam();
  for (std::uint32_t last = 0; last < size; ++last) {
    InprocRanks ranks(size, uneven_network(last));
    std::vector<support::SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (rank != last) {
        endings.push_back(ranks.submit(rank, gtopk::barrier()));
      }
    }
    ranks.run_for(std::chrono::milliseconds(50));
    for (const auto& ending : endings) {
      ASSERT_FALSE(ending->ended);
    }
    endings.push_back(ranks.submit(last, gtopk::barrier()));
    ranks.run_all();
    for (const auto& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST(AllReduce, RefusesAFactorThatItsOperationDoesNotTake) {
  float value = 1;
  EXPECT_THROW(
      static_cast<void>(gtopk::all_reduce(&value, 1, DataType::kFloat32, ReduceOp::kSum, 2)),
      Error);
  EXPECT_THROW(
      static_cast<void>(gtopk::all_reduce(&value, 1, DataType::kInt32, ReduceOp::kPremulSum, 2)),
      Error);
}

INSTANTIATE_TEST_SUITE_P(Every, Ranks, ::testing::ValuesIn(reference::kRankCounts));

TEST(LargeBroadcast, PassesPiecesOn) {
  const std::size_t bytes = 5 * collectives::kPieceBytes / 2;
  std::vector<reference::Bytes> data(6, reference::Bytes(bytes));
  for (std::size_t i = 0; i < bytes; ++i) {
    data[4][i] = static_cast<std::byte>(i * 31);
  }
  InprocRanks ranks(6);
  const auto endings =
      ranks.run([&](std::uint32_t rank) { return gtopk::broadcast(data[rank], 4); });
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
    EXPECT_TRUE(data[rank] == data[4]);
  }
}

TEST(ManySeeds, TheRingGivesTheSameBitsInEveryArrivalOrder) {
  const std::uint64_t d = collectives::kRecursiveDoublingBytes / 4 + 11;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    expect_all_reduce(2 + static_cast<std::uint32_t>(seed % 4), d, DataType::kFloat32,
                      ReduceOp::kSum, seed);
  }
}

}  // namespace
}  // namespace gtopk
