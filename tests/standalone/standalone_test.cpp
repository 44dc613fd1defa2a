// Tests, standalone: programs that see gtopk's public headers alone, the README's among them, run
// as several processes each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/transport/bootstrap/rendezvous_server.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

/// One rank of a program.
class Started {
 public:
  Started(const std::string& program, const std::vector<std::string>& arguments,
          const std::vector<std::pair<std::string, std::string>>& environment) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) std::abort();
    process_ = fork();
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      std::vector<std::string> words{program};
      words.insert(words.end(), arguments.begin(), arguments.end());
      std::vector<char*> pointers;
      for (std::string& word : words) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  Started(Started&& other) noexcept
      : process_(std::exchange(other.process_, -1)), output_(std::exchange(other.output_, -1)) {}
  Started& operator=(Started&&) = delete;
  ~Started() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    if (output_ >= 0) close(output_);
  }

  /// What it printed, once it has ended well.
  std::string join() {
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t got = 0; (got = read(output_, part.data(), part.size())) > 0;) {
      text.append(part.data(), static_cast<std::size_t>(got));
    }
    int status = 0;
    EXPECT_EQ(waitpid(std::exchange(process_, -1), &status, 0) > 0, true);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "status " << status << ": " << text;
    return text;
  }

 private:
  pid_t process_ = -1;
  int output_ = -1;
};

TEST(Standalone, ProgramOfTheReadmeRuns) {
  using bootstrap::RendezvousListener;
  std::optional<RendezvousListener> probe(
      RendezvousListener(bootstrap::Endpoint{.host = "127.0.0.1", .port = 0}));
  const std::string port = std::to_string(probe->port());
  probe.reset();
  std::vector<Started> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(
        README_PROGRAM, std::vector<std::string>(),
        std::vector<std::pair<std::string, std::string>>{{"RANK", std::to_string(rank)},
                                                         {"WORLD_SIZE", "2"},
                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                         {"MASTER_PORT", port}});
  }
  EXPECT_EQ(ranks[0].join(), "rank 0 of 2: 2\n");
  EXPECT_EQ(ranks[1].join(), "rank 1 of 2: 2\n");
}

TEST(Standalone, ProgramWithABootstrapOfItsOwnGoesThroughAGroupsWholeLife) {
  std::string folder = std::filesystem::temp_directory_path() / "gtopk-standalone-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto job = [&] {
    std::vector<Started> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back(OWN_BOOTSTRAP, std::vector<std::string>{folder, std::to_string(rank), "3"},
                         std::vector<std::pair<std::string, std::string>>());
    }
    std::vector<std::string> texts;
    for (Started& rank : ranks) texts.push_back(rank.join());
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
  // Twice in the same place, as when a job is started anew.
  job();
  job();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace
}  // namespace gtopk::test
