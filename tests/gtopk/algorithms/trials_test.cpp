// The rows of trials.cpp, beside the built-in ones: every algorithm with every selector and codec
// gives the reference's bits. The tests over the registries (reference_equality_test.cpp,
// codec_test.cpp) are in this program as well, so that they run over the trials.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string>

#include "gtopk/collectives.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "tests/reference/reference_selectors.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;

TEST(Trials, AreAmongTheChoices) {
  EXPECT_THAT(reference::algorithms(), ::testing::Contains("trial-flat"));
  EXPECT_EQ(selectors().back().name, "trial-sorted");
  EXPECT_EQ(wires().back().name, "trial-delta");
}

TEST(Trials, EverySelectorWireAndAlgorithm_MatchesReferenceBits) {
  std::uint64_t seed = 0;
  for (const std::string& algorithm : reference::algorithms()) {
    for (const Choice& selector : selectors()) {
      for (const std::string& wire : reference::wires(algorithm)) {
        for (const std::uint32_t size : {1U, 2U, 3U, 5U, 8U}) {
          for (const DataType type : reference::kFloatingTypes) {
            reference::Case drawn = reference::random_case(++seed, type, size, algorithm);
            drawn.problem.options.wire = wire;
            reference::choose_selector(drawn.problem.options, drawn.problem.d,
                                       std::string(selector.name));
            InprocRanks ranks(size, support::network(seed));
            ASSERT_EQ(support::differs_from_reference(ranks, drawn.problem), "")
                << drawn.description << ", " << selector.name << ", " << wire;
            ASSERT_TRUE(ranks.close().empty()) << drawn.description;
          }
        }
      }
    }
  }
}

/// Every rank's number goes once round the ring: a collective that only this test knows.
engine::Task<void> pass_round(engine::GroupView& group, std::uint32_t* sum) {
  const std::uint32_t next = (group.rank() + 1) % group.size();
  const std::uint32_t previous = (group.rank() + group.size() - 1) % group.size();
  std::uint32_t passing = group.rank();
  *sum = 0;
  for (std::uint32_t step = 0; step < group.size(); ++step) {
    *sum += passing;
    std::uint32_t arriving = 0;
    engine::Message incoming =
        group.recv(previous, step, std::as_writable_bytes(std::span(&arriving, 1)));
    engine::Message outgoing = group.send(next, step, std::as_bytes(std::span(&passing, 1)));
    const std::size_t bytes = co_await incoming;
    EXPECT_EQ(bytes, sizeof arriving);
    co_await outgoing;
    passing = arriving;
  }
}

TEST(Trials, ACollectiveOfOnesOwnRunsLikeTheOthers) {
  InprocRanks ranks(5);
  std::vector<std::uint32_t> sums(5);
  const auto endings = ranks.run([&](std::uint32_t rank) {
    Collective call;
    call.name = "pass_round";
    call.agreement = Agreement("pass_round").number("numbers", 1);
    call.body = [sum = &sums[rank]](engine::GroupView& group) { return pass_round(group, sum); };
    return call;
  });
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
    EXPECT_EQ(sums[rank], 10U);
  }
  EXPECT_EQ(support::group_works(ranks), "");
}

}  // namespace
}  // namespace gtopk
