// Collectives: which piece travels round the ring in which step, for every P up to 20.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "src/collectives/ring_order.hpp"

namespace gtopk::collectives {
namespace {

struct RingShape {
  std::uint32_t ranks;
  std::uint32_t first;
  std::uint32_t steps;
  std::uint64_t pieces;

  [[nodiscard]] RingOrder of(std::uint32_t rank) const {
    return {ranks, rank % ranks, first, steps, pieces};
  }
};

/// The rings that reduce and gather, only reduce, and only gather.
std::vector<RingShape> rings() {
  std::vector<RingShape> all;
  for (std::uint32_t ranks = 2; ranks <= 20; ++ranks) {
    for (const std::uint64_t pieces : {1U, 2U, 7U}) {
      all.push_back({ranks, ranks - 1, 2 * (ranks - 1), pieces});
      all.push_back({ranks, ranks - 1, ranks - 1, pieces});
      all.push_back({ranks, 0, ranks - 1, pieces});
    }
  }
  return all;
}

bool same(const RingPiece& left, const RingPiece& right) {
  return left.step == right.step && left.part == right.part && left.number == right.number;
}

TEST(RingOrder, ReceivesWhatThePreviousRankSends) {
  for (const RingShape& ring : rings()) {
    for (std::uint32_t rank = 0; rank < ring.ranks; ++rank) {
      ASSERT_EQ(ring.of(rank).messages(), ring.steps * ring.pieces);
      for (std::uint64_t message = 0; message < ring.of(rank).messages(); ++message) {
        ASSERT_TRUE(same(ring.of(rank).sent(message), ring.of(rank + 1).received(message)))
            << "P=" << ring.ranks << " rank " << rank << " message " << message;
      }
    }
  }
}

TEST(RingOrder, PassesOnInTheNextStepWhatItReceived) {
  for (const RingShape& ring : rings()) {
    for (std::uint32_t rank = 0; rank < ring.ranks; ++rank) {
      const RingOrder order = ring.of(rank);
      for (std::uint64_t message = order.pieces(); message < order.messages(); ++message) {
        const RingPiece sent = order.sent(message);
        const RingPiece received = order.received(message - order.pieces());
        ASSERT_EQ(sent.part, received.part);
        ASSERT_EQ(sent.number, received.number);
        ASSERT_EQ(sent.step, received.step + 1);
      }
    }
  }
}

TEST(RingOrder, BringsEveryPieceOnceInEachRound) {
  for (const RingShape& ring : rings()) {
    const RingOrder order = ring.of(1);
    for (std::uint32_t round = 0; round < ring.steps / (ring.ranks - 1); ++round) {
      std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
      const std::uint64_t messages = (ring.ranks - 1) * ring.pieces;
      for (std::uint64_t number = 0; number < messages; ++number) {
        const RingPiece piece = order.received(round * messages + number);
        EXPECT_TRUE(seen.insert({piece.part, piece.number}).second);
      }
    }
  }
}

TEST(RingOrder, EndsToReduceWithTheRanksOwnPart) {
  for (std::uint32_t ranks = 2; ranks <= 20; ++ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const RingOrder order(ranks, rank, ranks - 1, ranks - 1, 3);
      EXPECT_EQ(order.received(order.messages() - 1).part, rank);
    }
  }
}

TEST(RingPieces, CoverEachPartOnceAndNoneIsTooLong) {
  for (const std::uint64_t size : {0U, 1U, 5U, 100U, 1023U, 1024U, 1025U}) {
    for (const std::uint64_t most : {1U, 7U, 100U, 2000U}) {
      const std::uint64_t pieces = pieces_of(size, most);
      std::uint64_t end = 0;
      for (std::uint64_t number = 0; number < pieces; ++number) {
        const Interval interval = interval_of(size, number, pieces);
        EXPECT_EQ(interval.begin, end);
        EXPECT_LE(interval.size, most);
        end += interval.size;
      }
      EXPECT_EQ(end, size);
    }
  }
}

}  // namespace
}  // namespace gtopk::collectives
