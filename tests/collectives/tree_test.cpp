// Collectives: the arithmetic of the tree, for every P up to 70 and a few large ones.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "src/collectives/tree.hpp"

namespace gtopk::collectives {
namespace {

std::vector<std::uint32_t> rank_counts() {
  std::vector<std::uint32_t> counts;
  for (std::uint32_t ranks = 1; ranks <= 70; ++ranks) {
    counts.push_back(ranks);
  }
  counts.insert(counts.end(), {127, 128, 129, 1000, 4096, 5000});
  return counts;
}

class TreeOf : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  std::uint32_t ranks_ = GetParam();
  Tree tree_{GetParam()};
};

TEST_P(TreeOf, HasAPowerOfTwoOfLeavesThatHoldsMoreThanHalfOfTheRanks) {
  EXPECT_EQ(tree_.leaves(), 1U << tree_.rounds());
  EXPECT_LE(tree_.leaves(), ranks_);
  EXPECT_GT(2 * tree_.leaves(), ranks_);
}

TEST_P(TreeOf, CountsEachLeafOnceAndEachRankInOneLeaf) {
  std::vector<std::uint32_t> members(tree_.leaves());
  std::set<std::uint32_t> speakers;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    ASSERT_LT(tree_.leaf(rank), tree_.leaves());
    ++members[tree_.leaf(rank)];
    if (!tree_.folded_away(rank)) {
      EXPECT_EQ(tree_.rank_of(tree_.leaf(rank)), rank);
      EXPECT_TRUE(speakers.insert(tree_.leaf(rank)).second);
    }
  }
  EXPECT_EQ(speakers.size(), tree_.leaves());
  const std::uint32_t folded = ranks_ - tree_.leaves();
  for (std::uint32_t leaf = 0; leaf < tree_.leaves(); ++leaf) {
    EXPECT_EQ(members[leaf], leaf < folded ? 2U : 1U);
  }
}

TEST_P(TreeOf, KeepsTheOrderOfRanksInItsLeaves) {
  for (std::uint32_t rank = 1; rank < ranks_; ++rank) {
    EXPECT_LE(tree_.leaf(rank - 1), tree_.leaf(rank));
  }
}

TEST_P(TreeOf, FoldsEvenRanksWithTheNextOddOnes) {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!tree_.folds(rank)) {
      continue;
    }
    const std::uint32_t partner = Tree::fold_partner(rank);
    ASSERT_LT(partner, ranks_);
    EXPECT_TRUE(tree_.folds(partner));
    EXPECT_EQ(Tree::fold_partner(partner), rank);
    EXPECT_EQ(tree_.leaf(partner), tree_.leaf(rank));
    EXPECT_NE(tree_.folded_away(rank), tree_.folded_away(partner));
    EXPECT_EQ(tree_.folded_away(rank), rank % 2 == 1);
  }
}

TEST_P(TreeOf, HasMutualPartnersOnOppositeSidesThatNeverFoldAway) {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (tree_.folded_away(rank)) {
      continue;
    }
    std::set<std::uint32_t> partners;
    for (std::uint32_t round = 0; round < tree_.rounds(); ++round) {
      const std::uint32_t partner = tree_.partner(rank, round);
      ASSERT_LT(partner, ranks_);
      EXPECT_FALSE(tree_.folded_away(partner));
      EXPECT_EQ(tree_.partner(partner, round), rank);
      EXPECT_NE(tree_.on_left(rank, round), tree_.on_left(partner, round));
      EXPECT_EQ(tree_.on_left(rank, round), rank < partner);
      EXPECT_TRUE(partners.insert(partner).second);
    }
  }
}

// Every round doubles the ranks that a speaker has heard of; in the end that is every rank once.
TEST_P(TreeOf, LetsEverySpeakerHearOfEveryRankOnce) {
  if (ranks_ > 200) {
    return;
  }
  std::vector<std::multiset<std::uint32_t>> heard(ranks_);
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (tree_.folded_away(rank)) {
      continue;
    }
    heard[rank] = {rank};
    if (tree_.folds(rank)) {
      heard[rank].insert(Tree::fold_partner(rank));
    }
  }
  for (std::uint32_t round = 0; round < tree_.rounds(); ++round) {
    auto next = heard;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (tree_.folded_away(rank)) {
        continue;
      }
      const auto& other = heard[tree_.partner(rank, round)];
      next[rank].insert(other.begin(), other.end());
    }
    heard = std::move(next);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (tree_.folded_away(rank)) {
        continue;
      }
      EXPECT_EQ(*heard[rank].begin(), tree_.lowest_rank(rank, round));
    }
  }
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (tree_.folded_away(rank)) {
      continue;
    }
    ASSERT_EQ(heard[rank].size(), ranks_);
    std::uint32_t expected = 0;
    for (const std::uint32_t seen : heard[rank]) {
      EXPECT_EQ(seen, expected++);
    }
  }
}

TEST_P(TreeOf, NamesEveryStepDifferently) {
  std::set<std::uint32_t> steps = {Tree::fold_step()};
  for (std::uint32_t round = 0; round < tree_.rounds(); ++round) {
    EXPECT_TRUE(steps.insert(Tree::round_step(round)).second);
    EXPECT_TRUE(steps.insert(tree_.down_step(round)).second);
  }
  EXPECT_TRUE(steps.insert(tree_.unfold_step()).second);
  EXPECT_LT(*steps.rbegin(), tree_.end_step());
}

INSTANTIATE_TEST_SUITE_P(Ranks, TreeOf, ::testing::ValuesIn(rank_counts()));

}  // namespace
}  // namespace gtopk::collectives
