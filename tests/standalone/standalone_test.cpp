// Tests, standalone: programs that use only gtopk's public headers, including the one in examples/,
// run as several processes each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/program.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

/// What it printed; it must end successfully.
std::string printed(Program& rank) {
  const Ended ended = rank.join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  return ended.out;
}

TEST(Standalone, ProgramOfTheExamplesRuns) {
  const std::string port = std::to_string(free_port());
  std::vector<Program> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(EXAMPLE_PROGRAM, std::vector<std::string>(),
                       Program::Variables{{"RANK", std::to_string(rank)},
                                          {"WORLD_SIZE", "2"},
                                          {"MASTER_ADDR", "127.0.0.1"},
                                          {"MASTER_PORT", port}});
  }
  EXPECT_EQ(printed(ranks[0]), "rank 0 of 2: 2\n");
  EXPECT_EQ(printed(ranks[1]), "rank 1 of 2: 2\n");
}

std::ptrdiff_t occurrences(std::string_view text, std::string_view of) {
  std::ptrdiff_t count = 0;
  for (std::size_t at = 0; (at = text.find(of, at)) != std::string_view::npos; at += of.size()) {
    ++count;
  }
  return count;
}

TEST(Standalone, ExampleProgramPrintsItsErrorAndExits) {
  Program program(EXAMPLE_PROGRAM, {}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  const Ended ended = program.join();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("RANK"));
  EXPECT_EQ(occurrences(ended.err, "\n"), 1) << ended.err;
}

// With recursive doubling to log2 P others, and to one more where a rank is folded.
// tools/bench/startup.py counts those of 64 processes.
TEST(Standalone, Ranks_ConnectOnlyToThoseTheyExchangeListsWith) {
  for (const auto& made :
       {std::vector<std::ptrdiff_t>{1, 1}, {3, 1, 3, 1, 2, 2}, {3, 3, 3, 3, 3, 3, 3, 3}}) {
    const std::string port = std::to_string(free_port());
    std::vector<Program> ranks;
    for (std::size_t rank = 0; rank < made.size(); ++rank) {
      ranks.emplace_back(EXAMPLE_PROGRAM, std::vector<std::string>(),
                         Program::Variables{{"RANK", std::to_string(rank)},
                                            {"WORLD_SIZE", std::to_string(made.size())},
                                            {"MASTER_ADDR", "127.0.0.1"},
                                            {"MASTER_PORT", port},
                                            {"GTOPK_LOG_LEVEL", "info"}});
    }
    for (std::size_t rank = 0; rank < made.size(); ++rank) {
      const Ended ended = ranks[rank].join();
      EXPECT_EQ(ended.code, 0) << ended.err;
      EXPECT_EQ(occurrences(ended.err, " connects to "), made[rank])
          << "rank " << rank << " of " << made.size() << ": " << ended.err;
    }
  }
}

TEST(Standalone, OwnBootstrap_ServesWholeGroupLifeTwice) {
  std::string folder = std::filesystem::temp_directory_path() / "gtopk-standalone-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto job = [&] {
    std::vector<Program> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back(OWN_BOOTSTRAP,
                         std::vector<std::string>{folder, std::to_string(rank), "3"});
    }
    std::vector<std::string> texts;
    for (Program& rank : ranks) {
      texts.push_back(printed(rank));
    }
    for (const std::string& text : texts) {
      EXPECT_THAT(text, AllOf(StartsWith("world: sum 6, largest 3\n"),
                              HasSubstr("more: group 'more': rank 3 of 4 has not arrived in time"),
                              ContainsRegex("world: sum 6\n$")));
    }
    EXPECT_THAT(texts[0], Not(HasSubstr("rest: ")));
    for (const int rank : {1, 2}) {
      EXPECT_THAT(texts[static_cast<std::size_t>(rank)], HasSubstr("rest: sum 3\n"));
    }
  };
  // Twice in the same folder, as when a job is restarted.
  job();
  job();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace
}  // namespace gtopk::test
