// Sparse, plan: what is sent to measure costs is a part of the tensor that is planned for, and
// much larger tensors are measured for again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "src/engine/group.hpp"
#include "src/gtopk/plan/links.hpp"
#include "src/gtopk/plan/planner.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

using support::InprocRanks;
using support::SharedEnding;

constexpr std::uint64_t kKiB = 1024;
/// Of each link: 12 batches of four short messages, and the longest time.
constexpr std::uint64_t kShortBytes = 48ULL * 64 + 8;
/// What ranks agree on and reduce, which takes short messages only.
constexpr std::uint64_t kMostAgreed = 4 * kKiB;

/// Plans a call on every rank; returns the bytes that each sent.
std::vector<std::uint64_t> sent_to_plan(InprocRanks& ranks, std::uint64_t d, bool anew = false) {
  std::vector<PlanReport> reports(ranks.size());
  const auto bytes_sent = [&] {
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      bytes.push_back(ranks.group(rank)->metrics.read().bytes_sent);
    }
    return bytes;
  };
  const std::vector<std::uint64_t> before = bytes_sent();
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return gtopk::plan(d, DataType::kFloat32, {.k = 1}, reports[rank], anew);
  });
  for (const SharedEnding& ending : endings) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  std::vector<std::uint64_t> sent = bytes_sent();
  std::ranges::transform(sent, before, sent.begin(), std::minus<>());
  return sent;
}

std::uint64_t measured_by(InprocRanks& ranks) {
  const std::uint64_t number = ranks.group(0)->per_group_state.of<Planner>().measured_by;
  for (std::uint32_t rank = 1; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks.group(rank)->per_group_state.of<Planner>().measured_by, number);
  }
  return number;
}

TEST(Measuring, ForATensor_SendsAnEighthOfItAtMost) {
  struct Case {
    std::vector<std::string> hosts;
    std::uint64_t links;
  };
  const std::vector<Case> cases = {{{"a", "b"}, 1},           {{"a", "a"}, 1},
                                   {{"a", "a", "a"}, 2},      {{"a", "b", "c", "d"}, 2},
                                   {{"a", "a", "b", "b"}, 2}, {{"a", "a", "a", "b", "c", "c"}, 4}};
  for (const Case& each : cases) {
    for (const std::uint64_t d : {1ULL, 300'000ULL}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} links, d = {}", each.hosts.size(), each.links, d));
      const auto size = static_cast<std::uint32_t>(each.hosts.size());
      InprocRanks ranks(size, support::network(d), each.hosts);
      const std::uint64_t most = std::max(4 * d / 8, each.links * 12 * kKiB);
      EXPECT_EQ(long_bytes_for(4 * d, Routes(ranks.group(0)->hosts())), most);
      for (const std::uint64_t sent : sent_to_plan(ranks, d)) {
        EXPECT_LE(sent, most + each.links * kShortBytes + kMostAgreed);
      }
      for (const std::uint64_t sent : sent_to_plan(ranks, d)) {
        EXPECT_LE(sent, kMostAgreed);  // known
      }
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

TEST(Measuring, OfTwoRanks_SendsTheseBytes) {
  struct Case {
    std::uint64_t d;
    std::uint64_t long_bytes;
  };
  // In a network that takes no time: three first messages, then as many of up to 1 MiB as fit.
  for (const Case& each : {Case{1, 3 * (4 * kKiB)}, Case{49'152, 3 * (4 * kKiB) + 3 * (4 * kKiB)},
                           Case{300'000, 3 * (16 * kKiB) + 3 * (32 * kKiB)},
                           Case{2'500'000, 3 * (64 * kKiB) + 4 * (256 * kKiB)},
                           Case{100'000'000, 3 * (64 * kKiB) + 12 * (1024 * kKiB)}}) {
    InprocRanks ranks(2);
    const std::uint64_t measuring = sent_to_plan(ranks, each.d)[0];
    const std::uint64_t agreeing = sent_to_plan(ranks, each.d)[0];
    // Two agreements, and a reduction of 17 costs behind a header.
    constexpr std::uint64_t kAgreed = 2ULL * 64 + 64 + 17ULL * 8;
    EXPECT_EQ(measuring - agreeing, each.long_bytes + kShortBytes + kAgreed) << each.d;
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Measuring, IsRepeatedForMuchLargerTensorsOnly) {
  InprocRanks ranks(3, support::network(1));
  const auto after = [&](std::uint64_t d, bool anew = false) {
    sent_to_plan(ranks, d, anew);
    return measured_by(ranks);
  };
  EXPECT_EQ(after(1000), 1U);
  EXPECT_EQ(after(8000), 1U);
  EXPECT_EQ(after(8001), 3U);
  EXPECT_EQ(after(10), 3U);
  EXPECT_EQ(after(64'008), 3U);
  EXPECT_EQ(after(100'000'000), 6U);  // with all messages
  EXPECT_EQ(after(1'000'000'000), 6U);
  EXPECT_EQ(after(10, true), 8U);  // on demand
  EXPECT_EQ(after(80), 8U);
  EXPECT_EQ(after(1000), 10U);
  EXPECT_TRUE(ranks.close().empty());
}

TEST(Measuring, ForALargerTensor_IsAwaitedByWhatIsCalledBehind) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    InprocRanks ranks(2, support::uneven_network(seed));
    std::vector<PlanReport> reports(8);
    const auto plan = [&](std::uint32_t rank, std::uint32_t number, std::uint64_t d) {
      return ranks.submit(
          rank, gtopk::plan(d, DataType::kFloat32, {.k = 1}, reports[2 * number + rank], false));
    };
    // Rank 1 calls the last one when the others have ended there, rank 0 all at once.
    std::vector<SharedEnding> endings;
    for (std::uint32_t number = 0; number < 3; ++number) {
      const std::uint64_t d = number == 1 ? 100'000 : 100;
      endings.push_back(plan(0, number, d));
      endings.push_back(plan(1, number, d));
    }
    endings.push_back(plan(0, 3, 100));
    ranks.run_until([&] { return endings[5]->ended; });
    endings.push_back(plan(1, 3, 100));
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      EXPECT_TRUE(ending->good()) << ending->text() << ", seed " << seed;
    }
    EXPECT_EQ(reports[0].measured_by, 1U);
    for (std::size_t i = 2; i < reports.size(); ++i) {
      EXPECT_EQ(reports[i].measured_by, 2U);
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

}  // namespace
}  // namespace gtopk::sparse
