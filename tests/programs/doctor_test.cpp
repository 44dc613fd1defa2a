// Tests of what gtopk-info --doctor decides: which pairs are tested and when, and what the results
// say together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/programs/info/findings.hpp"
#include "tools/programs/info/pairs.hpp"

namespace gtopk::programs::info {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// As many hosts, with one rank each.
std::vector<Host> single(std::uint32_t count) {
  std::vector<Host> hosts;
  for (std::uint32_t host = 0; host < count; ++host) {
    hosts.push_back({.machine = fmt::format("m{}", host), .ranks = {host}});
  }
  return hosts;
}

TEST(Hosts, AreRanksOfEqualNamesInTheOrderOfTheLowest) {
  const auto hosts = hosts_of({"b", "a", "", "b", "a"}, {"x", "y", "", "x", "y"});
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts[0].machine, "x");
  EXPECT_THAT(hosts[0].ranks, ElementsAre(0, 3));
  EXPECT_THAT(hosts[1].ranks, ElementsAre(1, 4));
}

TEST(Rounds, HaveEachTwoHostsOnceAndNoHostTwiceAtATime) {
  for (std::uint32_t count = 1; count <= 33; ++count) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> met;
    const auto rounds = rounds_of(single(count));
    EXPECT_EQ(rounds.size(), count == 1 ? 0 : count - 1 + count % 2) << count;
    for (const Round& round : rounds) {
      std::set<std::uint32_t> busy;
      for (const Pair& pair : round) {
        EXPECT_LT(pair.from_host, pair.to_host);
        EXPECT_TRUE(busy.insert(pair.from).second) << count;
        EXPECT_TRUE(busy.insert(pair.to).second) << count;
        EXPECT_TRUE(met.emplace(pair.from, pair.to).second) << count;
      }
    }
    EXPECT_EQ(met.size(), count * (count - 1) / 2);
  }
}

TEST(Rounds, BeginWithEachHostByItself) {
  const auto rounds = rounds_of({{"a", {0, 4, 5}}, {"b", {1}}, {"c", {2, 3}}});
  ASSERT_EQ(rounds.size(), 4U);
  ASSERT_EQ(rounds[0].size(), 2U);
  EXPECT_EQ(rounds[0][0].from, 0U);
  EXPECT_EQ(rounds[0][0].to, 4U);
  EXPECT_EQ(rounds[0][1].from, 2U);
  EXPECT_EQ(rounds[0][1].to, 3U);
  for (std::size_t i = 1; i < rounds.size(); ++i) {
    EXPECT_EQ(rounds[i].size(), 1U);
  }
}

/// Hosts of one rank each on machines of their own, all pairs alike.
Examined examined(std::uint32_t count) {
  Examined job{.members = {}, .hosts = single(count), .pairs = {}};
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    job.members.push_back({.version = "1",
                           .machine = fmt::format("m{}", rank),
                           .host = fmt::format("h{}", rank),
                           .boot = fmt::format("b{}", rank),
                           .network = 1,
                           .ipc = 1});
  }
  for (const Round& round : rounds_of(job.hosts)) {
    for (const Pair& pair : round) {
      job.pairs.push_back(
          {.pair = pair, .transports = "tcp/eth0", .latency = 20e-6, .forth = 1e9, .back = 1e9});
    }
  }
  return job;
}

Tested& between(Examined& job, std::uint32_t a, std::uint32_t b) {
  for (Tested& each : job.pairs) {
    if (each.pair.from == a && each.pair.to == b) {
      return each;
    }
  }
  throw std::out_of_range("no such pair");
}

TEST(Findings, AreNoneWhereAllIsWell) {
  EXPECT_THAT(failures(examined(4)), IsEmpty());
  EXPECT_THAT(findings(examined(4)), IsEmpty());
}

TEST(Findings, NameLinksThatAreWorseThanTheOthers) {
  Examined job = examined(4);
  between(job, 0, 2).latency = 41e-6;
  between(job, 1, 3).back = 0.4e9;
  EXPECT_THAT(findings(job),
              ElementsAre(AllOf(HasSubstr("hosts 0 (m0) and 2 (m2): latency 41.0 us"),
                                HasSubstr("the median of all is 20.0 us")),
                          AllOf(HasSubstr("from host 3 (m3) to host 1 (m1): 0.4000 GB/s"),
                                HasSubstr("the median of all is 1.0000 GB/s"))));
  EXPECT_THAT(failures(job), IsEmpty());
}

/// A pair of hosts that far apart, in seconds of a round trip.
Examined distant(double round_trip, const char* control, double rate = 1e6) {
  Examined job = examined(2);
  Tested& pair = between(job, 0, 1);
  pair.latency = round_trip / 2;
  pair.forth = pair.back = rate;
  pair.from_end = {.interface = "eth0",
                   .mtu = 1500,
                   .congestion_control = control,
                   .receive_buffer = 6U << 20U,
                   .send_buffer = 4U << 20U};
  pair.to_end = pair.from_end;
  return job;
}

TEST(Findings, JudgeCongestionControlByTheRoundTrip) {
  EXPECT_THAT(
      findings(distant(50e-3, "cubic")),
      ElementsAre(AllOf(HasSubstr("hosts 0 (m0) and 1 (m1): a round trip takes 50.0 ms"),
                        HasSubstr("congestion control is cubic"), HasSubstr("congctl bbr"))));
  EXPECT_THAT(findings(distant(50e-3, "bbr")), IsEmpty());
  EXPECT_THAT(findings(distant(10e-3, "bbr")), IsEmpty());  // neither near nor far
  EXPECT_THAT(findings(distant(10e-3, "cubic")), IsEmpty());
  EXPECT_THAT(findings(distant(0.2e-3, "cubic")), IsEmpty());
  EXPECT_THAT(findings(distant(0.2e-3, "bbr")),
              ElementsAre(AllOf(HasSubstr("a round trip takes 0.20 ms"), HasSubstr("is bbr"))));
  Examined job = distant(50e-3, "bbr");
  between(job, 0, 1).to_end.congestion_control = "reno";
  EXPECT_THAT(findings(job), ElementsAre(HasSubstr("congestion control is reno")));
  between(job, 0, 1).error = "no answer";
  EXPECT_THAT(findings(job), IsEmpty());
}

TEST(Findings, NameBuffersThatHoldNoMoreThanTheLinkHasInFlight) {
  // 2 MiB of data in buffers of 4: a fifth below, and just there.
  EXPECT_THAT(findings(distant(50e-3, "bbr", 33e6)), IsEmpty());
  EXPECT_THAT(findings(distant(50e-3, "bbr", 34e6)),
              ElementsAre(AllOf(HasSubstr("1.7 MB were in flight in a round trip of 50.0 ms"),
                                HasSubstr("net.ipv4.tcp_rmem"))));
  Examined job = distant(50e-3, "bbr", 34e6);
  between(job, 0, 1).from_end.send_buffer = 16U << 20U;
  between(job, 0, 1).back = 1e6;
  EXPECT_THAT(findings(job), IsEmpty());
  EXPECT_THAT(findings(distant(1e-3, "cubic", 10e9)), IsEmpty());  // near
}

TEST(Text, SaysWhatTcpUsesAtBothEnds) {
  Examined job = distant(10e-3, "cubic");
  const auto text = [&job] { return fmt::format("{}\n", fmt::join(text_of(job), "\n")); };
  EXPECT_THAT(text(), HasSubstr("\n    0 - 1   tcp/eth0  MTU 1500, cubic\n"));
  between(job, 0, 1).to_end.tunnel = "WireGuard";
  between(job, 0, 1).to_end.mtu = 1420;
  EXPECT_THAT(text(),
              HasSubstr("\n    0 - 1   tcp/eth0  MTU 1500, cubic; the other end: WireGuard, "
                        "MTU 1420, cubic\n"));
  EXPECT_EQ(json_of(job)["rows"][0]["ends"][1]["mtu"], 1420);
}

TEST(Findings, AreAboutContainersThatShareLessThanTheyCould) {
  Examined job = examined(3);
  job.members[2].boot = job.members[0].boot;
  EXPECT_THAT(findings(job), IsEmpty());  // one host under two names
  job.members[2].ipc = 2;
  EXPECT_THAT(findings(job),
              ElementsAre(HasSubstr("hosts 0 (m0) and 2 (m2) are one machine whose ranks share no "
                                    "memory")));
  job = examined(1);
  job.members.push_back(job.members[0]);
  job.hosts[0].ranks.push_back(1);
  EXPECT_THAT(findings(job), IsEmpty());
  job.members[1].network = 2;
  EXPECT_THAT(findings(job), ElementsAre(HasSubstr("ranks 0 and 1 of host 0 (m0) share memory but "
                                                   "no network")));
  job.members[1].network = 0;  // unknown
  EXPECT_THAT(findings(job), IsEmpty());
}

/// All pairs alike, with so many ranks on each host, dealt in turn or not.
Examined crowded(std::uint32_t hosts, std::uint32_t on_each, bool in_turn) {
  Examined job = examined(hosts);
  job.members.resize(std::size_t{hosts} * on_each);
  for (std::uint32_t host = 0; host < hosts; ++host) {
    job.hosts[host].ranks.clear();
    for (std::uint32_t local = 0; local < on_each; ++local) {
      const std::uint32_t rank = in_turn ? local * hosts + host : host * on_each + local;
      job.hosts[host].ranks.push_back(rank);
      job.members[rank] = {.version = "1",
                           .machine = fmt::format("m{}", host),
                           .host = fmt::format("h{}", host),
                           .boot = ""};
    }
  }
  return job;
}

TEST(Findings, TellHowManyListsShareALinkWhereOneCouldCross) {
  EXPECT_THAT(findings(crowded(2, 4, true)),
              ElementsAre(AllOf(HasSubstr("gtopk sends 4 lists over a host's link"),
                                HasSubstr("of a host first, 1: prefer gtopk-placed"))));
  EXPECT_THAT(findings(crowded(4, 2, true)),
              ElementsAre(AllOf(HasSubstr("gtopk sends 4 lists"), HasSubstr("host first, 2:"))));
  // Neighbours share a host, and still all of them cross in the last round.
  EXPECT_THAT(findings(crowded(2, 4, false)), ElementsAre(HasSubstr("gtopk sends 4 lists")));
  EXPECT_THAT(findings(crowded(1, 4, false)), IsEmpty());
  EXPECT_THAT(findings(crowded(4, 1, false)), IsEmpty());
  Examined job = crowded(2, 2, true);
  job.members[3] = {};
  job.hosts[1].ranks.pop_back();
  EXPECT_THAT(findings(job), IsEmpty());  // who knows where it is
}

TEST(Failures, NameAbsentRanksOtherVersionsAndLinksThatDoNotWork) {
  Examined job = examined(4);
  job.members[3] = {};
  job.hosts.pop_back();
  std::erase_if(job.pairs, [](const Tested& each) { return each.pair.to == 3; });
  job.members[1].version = "2";
  between(job, 1, 2).error = "no answer from rank 2";
  EXPECT_THAT(failures(job),
              ElementsAre("rank 3 of 4 has not come", "rank 1 (m1) has gtopk 2, and rank 0 has 1",
                          "host 1 (m1) and host 2 (m2), by ranks 1 and 2: no answer from rank 2"));
  const auto record = json_of(job);
  EXPECT_EQ(record["absent"], nlohmann::json({3}));
  EXPECT_EQ(record["failed"].size(), 3U);
  EXPECT_EQ(record["rows"].size(), 3U);
}

TEST(Text, HasAMatrixFromRowToColumn) {
  Examined job = examined(3);
  between(job, 0, 1).forth = 2e9;
  between(job, 1, 2).error = "nothing came";
  const std::string text = fmt::format("{}\n", fmt::join(text_of(job), "\n"));
  EXPECT_THAT(text, HasSubstr("  latency(us)         0         1         2\n"
                              "            0         -     20.00     20.00\n"
                              "            1     20.00         -    failed\n"
                              "            2     20.00    failed         -\n"));
  EXPECT_THAT(text, HasSubstr("     bw(GB/s)         0         1         2\n"
                              "            0         -    2.0000    1.0000\n"
                              "            1    1.0000         -    failed\n"
                              "            2    1.0000    failed         -\n"));
  EXPECT_THAT(text,
              AllOf(HasSubstr("\n    0 - 1   tcp/eth0\n"), HasSubstr("\n    1 - 2   failed\n"),
                    HasSubstr("\nfailed\n  - host 1 (m1) and host 2 (m2)")));
}

}  // namespace
}  // namespace gtopk::programs::info
