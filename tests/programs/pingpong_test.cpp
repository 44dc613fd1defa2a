// Tests of gtopk-pingpong: by address and by hand, every mode over both layers, every byte checked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/programs/started.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr std::size_t kSizes = 4;  // 1, 64, 4096 and 200,000 bytes
const std::vector<std::string> kShort = {"-b", "1",  "-e", "200000", "-f",     "64",
                                         "-n", "10", "-w", "2",      "--check"};

class Modes : public testing::TestWithParam<const char*> {};

TEST_P(Modes, MoveEveryByteThroughBothLayers) {
  const JsonOutput output;
  std::vector<std::string> arguments = {"--mode",  GetParam(), "--window", "5",
                                        "--chunk", "60000",    "--json",   output.path()};
  arguments.insert(arguments.end(), kShort.begin(), kShort.end());
  const auto ended = joined(started_by_hand(PINGPONG, 2, arguments));
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(one.err, "");
  }
  EXPECT_EQ(ended[1].out, "");
  const nlohmann::json record = output.read();
  ASSERT_EQ(record["rows"].size(), 2 * kSizes);
  for (const auto& row : record["rows"]) {
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_EQ(row["samples_seconds"].size(), 10U) << row;
  }
  EXPECT_EQ(record.contains("links"), std::string(GetParam()) != "bw");
}

INSTANTIATE_TEST_SUITE_P(Each, Modes, testing::Values("lat", "exchange", "bw"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(Pingpong, TheServerDoesWhatTheClientWasTold) {
  const std::string port = std::to_string(free_port());
  Program server(PINGPONG, {"--listen", port, "-e", "8", "--layer", "calls"});
  std::vector<std::string> arguments = kShort;
  arguments.push_back("127.0.0.1:" + port);
  Program client(PINGPONG, arguments);
  const Ended ended = client.join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("# messages: alpha "), HasSubstr("# calls: alpha ")));
  const Ended served = server.join();
  EXPECT_EQ(served.code, 0) << served.err;
  EXPECT_EQ(served.out, "");
}

TEST(Pingpong, TellsWhereBothRanksAre) {
  std::vector<std::string> arguments = {"--topology", "--layer", "messages"};
  arguments.insert(arguments.end(), kShort.begin(), kShort.end());
  const auto ended = joined(started_by_hand(PINGPONG, 2, arguments));
  EXPECT_EQ(ended[0].code, 0) << ended[0].err;
  for (const char* const rank : {"# rank 0 on ", "# rank 1 on "}) {
    EXPECT_THAT(ended[0].out,
                ContainsRegex(std::string(rank) + ".*, cores [0-9].*; engine thread .*; NIC .*: "));
  }
}

TEST(Pingpong, EndsQuietlyOnBothSidesWhenNobodyReads) {
  const std::string port = std::to_string(free_port());
  Program server(PINGPONG, {"--listen", port});
  Program client(PINGPONG, {"localhost:" + port}, {}, false);
  for (Program* const program : {&server, &client}) {
    const Ended ended = program->join();
    EXPECT_EQ(ended.code, 0);
    EXPECT_EQ(ended.err, "");
  }
}

}  // namespace
}  // namespace gtopk::test
