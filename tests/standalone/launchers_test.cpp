// Tests, standalone: a program without torch, started by the launchers that offer PMIx: Open MPI's
// mpirun (MPI itself is not used) and PRRTE's prterun. A missing launcher is a skip that says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/program.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kLongest = "100";  // seconds, for timeout(1)

/// The path of a program in PATH; empty if it is not there.
std::string path_of(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path file = std::filesystem::path(folder) / program;
    if (std::filesystem::exists(file)) {
      return file;
    }
  }
  return {};
}

struct Launcher {
  std::string program;
  std::vector<std::string> more_ranks_than_cores;
  std::vector<std::string> survive_a_death;

  friend std::ostream& operator<<(std::ostream& out, const Launcher& launcher) {
    return out << launcher.program;
  }
};

const std::vector<Launcher> kLaunchers = {
    {.program = "mpirun",
     .more_ranks_than_cores = {"--oversubscribe"},
     .survive_a_death = {"--enable-recovery"}},
    {.program = "prterun",
     .more_ranks_than_cores = {"--map-by", ":oversubscribe"},
     .survive_a_death = {"--runtime-options", "recoverable"}},
};

/// Launchers refuse to run as root without these. UCX's settings come from the lab or from CI.
Program::Variables environment() {
  return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
          {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
          {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
}

/// What it printed; it must end successfully.
std::string printed(Program program) {
  const Ended ended = program.join();
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  return ended.out;
}

class Launchers : public testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    launcher_ = path_of(GetParam().program);
    if (launcher_.empty()) {
      GTEST_SKIP() << GetParam().program << " is not in PATH: nothing was started by it";
    }
  }

  /// Starts launched_job on `ranks` ranks.
  [[nodiscard]] Program start(int ranks, const std::string& what,
                              const std::vector<std::string>& options = {}) const {
    std::vector<std::string> words{"--kill-after=5", kLongest, launcher_, "-n",
                                   std::to_string(ranks)};
    const auto& oversubscribe = GetParam().more_ranks_than_cores;
    words.insert(words.end(), oversubscribe.begin(), oversubscribe.end());
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {LAUNCHED_JOB, what});
    return {path_of("timeout"), words, environment()};
  }

 private:
  std::string launcher_;
};

INSTANTIATE_TEST_SUITE_P(Every, Launchers, testing::ValuesIn(kLaunchers),
                         [](const auto& instance) { return instance.param.program; });

TEST_P(Launchers, CarryAJobOfAnyNumberOfRanksTwice) {
  for (const int ranks : {1, 2, 4}) {
    const std::string text = printed(start(ranks, "life"));
    for (int rank = 0; rank < ranks; ++rank) {
      const int part = (ranks + 1 - rank % 2) / 2;
      const std::string line =
          fmt::format("rank {} of {}: world {}, part of {}: {}, world {}\n", rank, ranks,
                      ranks == 1 ? "1" : std::to_string(ranks), part, part, ranks);
      const std::size_t first = text.find(line);
      EXPECT_NE(first, std::string::npos) << "not found: " << line << "in: " << text;
      EXPECT_NE(text.find(line, first + 1), std::string::npos)
          << "once: " << line << "in: " << text;
    }
  }
}

TEST_P(Launchers, LetTheOthersHearOfARankThatDies) {
  const std::string text = start(3, "death", GetParam().survive_a_death).join().out;
  for (const char* const rank : {"rank 0: ", "rank 2: "}) {
    EXPECT_THAT(text, ContainsRegex(fmt::format("{}.*rank 1 \\(", rank)));
  }
}

TEST_P(Launchers, EndAJobOfWhichARankDies) {
  const Ended ended = start(3, "death").join();
  EXPECT_NE(ended.code, 0) << ended.out;
  EXPECT_NE(ended.code, 124) << "ended by timeout: " << ended.out;
}

TEST_P(Launchers, LetAMeetingNameTheRankThatDoesNotCome) {
  const std::string text = printed(start(3, "absence"));
  for (const char* const rank : {"rank 0: ", "rank 2: "}) {
    EXPECT_THAT(
        text, HasSubstr(fmt::format("{}group 'world': rank 1 of 3 has not arrived in time", rank)));
  }
}

TEST(WithoutALauncher, RanksStartedByHandJoinTheirJobTwice) {
  const std::string port = std::to_string(free_port());
  std::vector<Program> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(LAUNCHED_JOB, std::vector<std::string>{"life"},
                       Program::Variables{{"RANK", std::to_string(rank)},
                                          {"WORLD_SIZE", "3"},
                                          {"MASTER_ADDR", "127.0.0.1"},
                                          {"MASTER_PORT", port}});
  }
  for (int rank = 0; rank < 3; ++rank) {
    const int part = rank == 1 ? 1 : 2;
    const std::string line =
        fmt::format("rank {} of 3: world 3, part of {}: {}, world 3\n", rank, part, part);
    const Ended ended = ranks[static_cast<std::size_t>(rank)].join();
    EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
    EXPECT_EQ(ended.out, line + line);
  }
}

TEST(WithoutALauncher, AProgramSaysSoAtOnce) {
  const auto text_of = [](const Program::Variables& environment) {
    const Ended ended = Program(LAUNCHED_JOB, {"life"}, environment).join();
    EXPECT_EQ(ended.code, 1) << ended.err;
    return ended.out;
  };
  EXPECT_THAT(text_of({}), AllOf(HasSubstr("WORLD_SIZE is not set: start the ranks with torchrun, "
                                           "mpirun, prterun or srun"),
                                 Not(HasSubstr("PMIx cannot"))));
  // Left over from a finished job, or from one unrelated to this process.
  EXPECT_THAT(text_of({{"PMIX_NAMESPACE", "nobody's"}, {"PMIX_RANK", "0"}}),
              HasSubstr("WORLD_SIZE is not set, and PMIx is not usable ("));
  EXPECT_THAT(text_of({{"PMIX_NAMESPACE", "nobody's"}, {"GTOPK_PMIX_LIBRARY", "/nowhere.so"}}),
              AllOf(HasSubstr("/nowhere.so cannot be used"), HasSubstr("GTOPK_PMIX_LIBRARY")));
}

}  // namespace
}  // namespace gtopk::test
