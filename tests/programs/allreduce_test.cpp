// Tests of gtopk-allreduce: started by hand on 1 to 4 ranks, every algorithm equals the reference;
// and ranks that disagree, die, or print to a closed pipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtopk/types.hpp"
#include "tests/programs/started.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Ranks : public testing::TestWithParam<std::uint32_t> {};

TEST_P(Ranks, EqualTheSequentialReferenceWithEveryAlgorithm) {
  const JsonOutput output;
  const auto ended = joined(started_by_hand(
      ALLREDUCE, GetParam(),
      {"-b", "1", "-e", "4K", "-f", "64", "-n", "2", "-w", "1", "-a", "all", "--wire",
       "lossless,bf16", "--density", "0.02", "--check", "--json", output.path()}));
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(one.err, "");
  }
  for (std::size_t rank = 1; rank < ended.size(); ++rank) {
    EXPECT_EQ(ended[rank].out, "");
  }

  const nlohmann::json record = output.read();
  std::set<std::string> seen;
  for (const auto& row : record["rows"]) {
    seen.insert(row["algorithm"]);
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_EQ(row["samples_seconds"].size(), 2U);
    EXPECT_LT(row["mass_error"], 1e-2) << row;
    EXPECT_EQ(row["bytes_wire"] > 0, GetParam() > 1) << row;
  }
  EXPECT_EQ(seen.size(), algorithms().size());
  EXPECT_EQ(record["rows"].size(), 3UL * 2 * algorithms().size());  // sizes, wires
  const auto lines = static_cast<std::size_t>(std::ranges::count(ended[0].out, '\n'));
  EXPECT_GT(lines, record["rows"].size());
}

INSTANTIATE_TEST_SUITE_P(By, Ranks, testing::Values(1, 2, 3, 4));

TEST(Allreduce, AlgorithmsWithSameTree_GiveSameBits) {
  const JsonOutput output;
  const auto ended =
      joined(started_by_hand(ALLREDUCE, 4,
                             {"-b", "10000", "-e", "10000", "-n", "3", "-w", "0", "-a",
                              "gtopk,gtopk-tree,topk", "--json", output.path()}));
  for (const Ended& one : ended) {
    ASSERT_EQ(one.code, 0) << one.err;
  }
  const auto rows = output.read()["rows"];
  EXPECT_EQ(rows[0]["checksum"], rows[1]["checksum"]);
  EXPECT_NE(rows[0]["checksum"], rows[2]["checksum"]);
}

TEST(Allreduce, LeavesOutOfAListWhatDoesNotGoTogetherAndSaysWhy) {
  Program program(ALLREDUCE,
                  {"-b", "64", "-e", "64", "-n", "1", "-a", "gtopk,topk", "--wire", "sign"});
  const Ended ended = program.join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("# left out: gtopk, exact, sign, float32: wire 'sign'"),
                               HasSubstr("        topk     exact      sign")));
}

TEST(Allreduce, TellsWhereTheRanksAre) {
  const auto ended =
      joined(started_by_hand(ALLREDUCE, 2, {"-b", "1000", "-e", "1000", "-n", "2", "--topology"}));
  EXPECT_EQ(ended[0].code, 0) << ended[0].err;
  EXPECT_EQ(ended[1].code, 0) << ended[1].err;
  for (const char* const rank : {"# rank 0 on ", "# rank 1 on "}) {
    EXPECT_THAT(ended[0].out,
                testing::ContainsRegex(std::string(rank) + ".*, cores [0-9].*; engine thread "));
  }
}

TEST(Allreduce, EndsQuietlyOnAllRanksWhenNobodyReads) {
  const std::string rendezvous = fmt::format("127.0.0.1:{}", free_port());
  const auto rank = [&](const char* number, bool read) {
    return Program(ALLREDUCE, {"--rank", number, "--ranks", "2", "--rendezvous", rendezvous}, {},
                   read);
  };
  Program zero = rank("0", false);
  Program one = rank("1", true);
  for (Program* const program : {&zero, &one}) {
    const Ended ended = program->join();
    EXPECT_EQ(ended.code, 0);
    EXPECT_EQ(ended.err, "");
  }
}

TEST(Allreduce, RanksThatWereToldDifferentThingsAllNameBoth) {
  struct Case {
    std::vector<std::string> zero;
    std::vector<std::string> one;
    std::string said;
  };
  for (const Case& each : {
           Case{{"-n", "30"}, {"-n", "20"}, "rank 1 was started with -n 20, rank 0 with -n 30"},
           Case{{"-k", "10"}, {"-k", "11"}, "with -k 11, rank 0 with -k 10"},
           Case{{}, {"-k", "11"}, "with -k 11, rank 0 with --density 0.001"},
           Case{{"-a", "gtopk,topk"}, {"-a", "topk"}, "with -a topk, rank 0 with -a gtopk,topk"},
           Case{{"--topology"}, {}, "with no --topology, rank 0 with --topology"},
       }) {
    const std::string rendezvous = fmt::format("127.0.0.1:{}", free_port());
    std::vector<Program> programs;
    for (const int rank : {0, 1}) {
      std::vector<std::string> words = {"--rank",       std::to_string(rank), "--ranks",   "2",
                                        "--rendezvous", rendezvous,           "--timeout", "20"};
      const std::vector<std::string>& own = rank == 0 ? each.zero : each.one;
      words.insert(words.end(), own.begin(), own.end());
      programs.emplace_back(ALLREDUCE, words);
    }
    for (const Ended& ended : joined(std::move(programs))) {
      EXPECT_EQ(ended.code, 1);
      EXPECT_THAT(ended.err, HasSubstr(each.said));
      EXPECT_EQ(std::ranges::count(ended.err, '\n'), 1) << ended.err;
    }
  }
}

TEST(Allreduce, ARankThatIsKilledIsNamedByTheOthers) {
  auto programs = started_by_hand(ALLREDUCE, 3, {"-n", "1000000", "-b", "64", "-e", "128"});
  while (programs[0].out().find("algorithm") == std::string::npos) {
    std::this_thread::yield();
  }
  kill(programs[2].process(), SIGKILL);
  for (const std::size_t rank : {0, 1}) {
    const Ended ended = programs[rank].join();
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.err, AllOf(HasSubstr(fmt::format("gtopk-allreduce: rank {}: ", rank)),
                                 HasSubstr("rank 2")));
  }
  EXPECT_EQ(programs[2].join().code, 128 + SIGKILL);
}

}  // namespace
}  // namespace gtopk::test
