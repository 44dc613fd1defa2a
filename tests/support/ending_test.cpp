// Test support: an ending that a test never examines fails it, and looking too early does not
// count.
#include "tests/support/ending.hpp"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/calls.hpp"
#include "tests/support/inproc_ranks.hpp"

namespace gtopk::support {
namespace {

const Error kError(ErrorKind::kMismatch, "the reason");

TEST(Endings, ThatNobodyLooksAtAreCountedAndTheFirstIsNamed) {
  Endings endings;
  endings.add(0, "barrier")->end(std::nullopt);
  endings.add(1, "all_reduce")->end(kError);
  static_cast<void>(endings.add(2, "broadcast"));
  EXPECT_TRUE(endings.unexamined().starts_with("3 of 3 ")) << endings.unexamined();
  EXPECT_TRUE(endings.unexamined().ends_with(": barrier of rank 0: ok")) << endings.unexamined();
  EXPECT_NONFATAL_FAILURE(endings.expect_examined(), "3 of 3");
}

TEST(Endings, ReadAsGoodErrorTextOrIgnored_AreExamined) {
  Endings endings;
  const SharedEnding good = endings.add(0, "barrier");
  const SharedEnding bad = endings.add(0, "barrier");
  const SharedEnding read = endings.add(0, "barrier");
  const SharedEnding ignored = endings.add(0, "barrier");
  for (const SharedEnding& ending : {good, bad, read, ignored}) {
    const_cast<Ending&>(*ending).end(kError);
  }
  EXPECT_FALSE(good->good());
  EXPECT_EQ(bad->error->kind(), ErrorKind::kMismatch);
  EXPECT_EQ(read->text(), "the reason");
  ignored->ignore("this test shows that it can");
  EXPECT_EQ(endings.unexamined(), "");
}

TEST(Endings, ThatWereLookedAtBeforeTheyWereThereAreUnexamined) {
  Endings endings;
  const std::shared_ptr<Ending> ending = endings.add(0, "barrier");
  EXPECT_FALSE(ending->good());
  EXPECT_FALSE(ending->error.has_value());
  EXPECT_EQ(ending->text(), "not ended");
  ending->end(std::nullopt);
  EXPECT_TRUE(ending->ended);
  EXPECT_FALSE(ending->examined());
  EXPECT_TRUE(ending->good());
  EXPECT_TRUE(ending->examined());
}

TEST(Endings, ComeOnce) {
  Endings endings;
  const std::shared_ptr<Ending> ending = endings.add(0, "barrier");
  ending->end(std::nullopt);
  EXPECT_THROW(ending->end(std::nullopt), std::logic_error);
}

// A barrier on two ranks against an all-reduce on the third: all fail, and the test does not look.
TEST(Endings, OfInprocRanksThatAreDroppedFailTheTest) {
  EXPECT_NONFATAL_FAILURE(
      {
        InprocRanks ranks(3);
        std::int64_t value = 1;
        static_cast<void>(ranks.run([&](std::uint32_t rank) {
          return rank == 2 ? all_reduce(&value, 1, DataType::kInt64) : barrier();
        }));
      },
      "3 of 3 operations ended and the test did not look how");
}

TEST(Endings, OfADeadRankAreNotOwed) {
  InprocRanks ranks(2);
  static_cast<void>(ranks.submit(1, barrier()));
  ranks.kill(1, transport::inproc::Death::kNoticed);
  const auto endings = ranks.run([](std::uint32_t) { return barrier(); });
  EXPECT_EQ(endings[0]->error->kind(), ErrorKind::kPeerFailed) << endings[0]->text();
}

}  // namespace
}  // namespace gtopk::support
