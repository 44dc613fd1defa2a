// Engine: messages that lie there, not received yet, when their sender or their receiver leaves.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "tests/support/calls.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;

/// Every message arrives without being asked for.
transport::inproc::FabricOptions sends_ahead(std::uint64_t seed) {
  transport::inproc::FabricOptions options;
  options.seed = seed;
  options.eager_below = std::numeric_limits<std::size_t>::max();
  return options;
}

TEST(LeftMessages, AreReceivedByThoseThatCallLater) {
  for (std::uint64_t seed = 0; seed < support::seeds(40); ++seed) {
    InprocRanks ranks(3, sends_ahead(seed));
    ASSERT_EQ(support::group_works(ranks), "");
    std::array<std::int64_t, 2> sent = {7, 8};
    std::array<std::int64_t, 2> got{};
    std::uint32_t from = 99;
    const auto bytes = std::as_bytes(std::span(sent));
    const auto buffer = std::as_writable_bytes(std::span(got));
    const auto one = ranks.submit(0, gtopk::send(bytes.first(8), 1, 5));
    const auto two = ranks.submit(0, gtopk::send(bytes.last(8), 1, 5));
    ranks.run_until([&] { return one->ended && two->ended; });
    ranks.leave(0);
    ranks.run_for(std::chrono::seconds(5));

    const auto any = ranks.submit(1, gtopk::recv_any(buffer.first(8), 5, from));
    ranks.run_until([&] { return any->ended; });
    const auto named = ranks.submit(1, gtopk::recv(buffer.last(8), 0, 5));
    const auto none = ranks.submit(1, gtopk::recv(buffer.last(8), 0, 5));
    ranks.run_until([&] { return named->ended && none->ended; });
    ASSERT_TRUE(one->good() && two->good() && any->good() && named->good())
        << "seed " << seed << ": " << any->text();
    EXPECT_EQ(got, sent);
    EXPECT_EQ(from, 0U);
    EXPECT_NE(none->text().find("has left"), std::string::npos) << none->text();
    ranks.settle();
  }
}

// Rank 0 has never turned to rank 1, which has connected to it.
TEST(LeftMessages, ThatNobodyReceivedTellTheirSenderOfTheDeparture) {
  for (const bool receives_then : {true, false}) {
    InprocRanks ranks(2, sends_ahead(0));
    const std::vector<std::byte> sent(8);
    std::vector<std::byte> buffer(8);
    const auto out = ranks.submit(1, gtopk::send(sent, 0, 5));
    ranks.run_until([&] { return out->ended; });
    ASSERT_TRUE(out->good()) << out->text();
    ranks.run_for(std::chrono::milliseconds(1));
    std::optional<SharedEnding> in;
    if (receives_then) {
      in = ranks.submit(1, gtopk::recv(buffer, 0, 5));
      ranks.run_for(std::chrono::milliseconds(1));
    }
    ranks.engine(0).remove_group(*ranks.group(0));
    ranks.leave(0);
    if (!receives_then) {
      ranks.run_for(std::chrono::seconds(1));
      in = ranks.submit(1, gtopk::recv(buffer, 0, 5));
    }
    ranks.run_until([&] { return (*in)->ended; });
    EXPECT_NE((*in)->text().find("has left"), std::string::npos) << (*in)->text();
    EXPECT_FALSE(ranks.group(1)->failure) << ranks.group(1)->failure->what();
  }
}

}  // namespace
}  // namespace gtopk
