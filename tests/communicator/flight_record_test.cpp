// Communicator: the flight record of a process, by call, by signal and as a file when an operation
// fails; and the values that its environment variables accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "tests/communicator/member.hpp"
#include "tests/support/forked_ranks.hpp"
#include "tests/support/held_resources.hpp"

namespace gtopk::test {
namespace {

using nlohmann::json;

/// The directory's one finished file, once `ready` accepts it.
json awaited_record(const std::string& directory, const std::function<bool(const json&)>& ready) {
  const auto end = std::chrono::steady_clock::now() + kWatchdog;
  while (std::chrono::steady_clock::now() < end) {
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      if (file.path().extension() != ".json") {
        continue;
      }
      std::ifstream stream(file.path());
      json record = json::parse(stream);
      if (ready(record)) {
        return record;
      }
    }
    std::this_thread::yield();
  }
  throw std::runtime_error("no flight record in " + directory);
}

/// A sum over both ranks, which must succeed.
void sum_once(Member& member) {
  std::int64_t value = 1;
  const Pending pending;
  member.group().run(gtopk::all_reduce(&value, 1, DataType::kInt64), pending.call());
  const Ending ending = pending.wait();
  ASSERT_TRUE(ending.good()) << ending.text;
}

auto handler_of(int signal) {
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

/// A directory for each rank, removed with this object.
class Records {
 public:
  Records() {
    std::string name = (std::filesystem::temp_directory_path() / "gtopk-records-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no temporary directory");
    }
    path_ = name;
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  Records(Records&&) = delete;
  Records& operator=(Records&&) = delete;
  ~Records() { std::filesystem::remove_all(path_); }

  /// Makes a rank's directory this process's from now on.
  [[nodiscard]] std::string use(int rank) const {
    const std::string own = (path_ / std::to_string(rank)).string();
    std::filesystem::create_directory(own);
    setenv("GTOPK_FLIGHT_RECORDER_DIR", own.c_str(), 1);
    return own;
  }

 private:
  std::filesystem::path path_;
};

TEST(FlightRecord, IsReadByCall) {
  run_forked_ranks(2, [](ForkedRank& self) {
    Member member(self);
    sum_once(member);
    const json record = json::parse(member.process().flight_record());
    ASSERT_EQ(record["entries"].size(), 1U);
    EXPECT_EQ(record["entries"][0]["state"], "completed");
    EXPECT_EQ(record["pg_config"]["default"]["rank"], self.rank());
    member.leave();
  });
}

TEST(FlightRecord, IsInAFileAfterATimeOut) {
  const Records records;
  run_forked_ranks(2, [&](ForkedRank& self) {
    const std::string directory = records.use(self.rank());
    Member member(self);
    sum_once(member);
    if (self.rank() == 1) {
      wait_for_all(*self.store(), "timed out", 2);
      member.leave();
      return;
    }
    std::int64_t value = 1;
    const Pending pending;
    member.group().run(gtopk::all_reduce(&value, 1, DataType::kInt64),
                       pending.call(std::chrono::milliseconds(300)));
    EXPECT_EQ(pending.wait().error, ErrorKind::kTimeout);
    const json record =
        awaited_record(directory, [](const json& all) { return all["entries"].size() == 2; });
    EXPECT_EQ(record["entries"][1]["state"], "failed");
    EXPECT_THAT(record["entries"][1]["error"].get<std::string>(),
                testing::HasSubstr("never entered all_reduce #2"));
    EXPECT_EQ(record["pg_status"]["default"]["last_completed_collective"], 1);
    wait_for_all(*self.store(), "timed out", 2);
    member.leave();
  });
}

TEST(FlightRecord, IsInAFileAfterASignalWhichIsGivenBackInTheEnd) {
  const Records records;
  run_forked_ranks(2, [&](ForkedRank& self) {
    const std::string directory = records.use(self.rank());
    setenv("GTOPK_FLIGHT_RECORDER_SIGNAL", "SIGUSR2", 1);
    const auto before = handler_of(SIGUSR2);
    {
      Member member(self);
      EXPECT_NE(handler_of(SIGUSR2), before);
      sum_once(member);
      std::raise(SIGUSR2);
      const json record = awaited_record(directory, [](const json&) { return true; });
      EXPECT_EQ(record["entries"][0]["profiling_name"], "gtopk:all_reduce");
      member.leave();
    }
    EXPECT_EQ(handler_of(SIGUSR2), before);
  });
}

TEST(FlightRecord, LeavesNoThreadAndNoDescriptorBehind) {
  const Records records;
  run_forked_ranks(1, [&](ForkedRank& self) {
    static_cast<void>(records.use(self.rank()));
    setenv("GTOPK_FLIGHT_RECORDER_SIGNAL", "SIGUSR2", 1);
    const auto live = [&] { Member(self).leave(); };
    live();  // from here on UCX's per-process resources exist
    const HeldResources before;
    for (int round = 0; round < 3; ++round) {
      live();
    }
    EXPECT_TRUE(holds_no_more_than(before));
  });
}

TEST(FlightRecord, OfNoOperationsIsEmptyAndCostsNothing) {
  run_forked_ranks(2, [](ForkedRank& self) {
    setenv("GTOPK_FLIGHT_RECORDER", "0", 1);
    Member member(self);
    sum_once(member);
    EXPECT_TRUE(json::parse(member.process().flight_record())["entries"].empty());
    member.leave();
  });
}

TEST(FlightRecord, RefusesAnEnvironmentThatMakesNoSense) {
  run_forked_ranks(1, [](ForkedRank&) {
    const auto refused = [](const char* name, const char* value) -> std::string {
      setenv(name, value, 1);
      try {
        static_cast<void>(Process::start());
      } catch (const Error& error) {
        unsetenv(name);
        return error.kind() == ErrorKind::kInvalidArgument ? error.what() : "of another kind";
      }
      return "not refused";
    };
    EXPECT_EQ(refused("GTOPK_FLIGHT_RECORDER", "many"),
              "GTOPK_FLIGHT_RECORDER=many: expected a number of operations, 0 to 1000000");
    EXPECT_THAT(refused("GTOPK_FLIGHT_RECORDER_SIGNAL", "SIGUSR1"),
                testing::HasSubstr("expected GTOPK_FLIGHT_RECORDER_DIR to be set as well"));
    setenv("GTOPK_FLIGHT_RECORDER_DIR", "/tmp", 1);
    EXPECT_THAT(refused("GTOPK_FLIGHT_RECORDER_SIGNAL", "SIGKILL"),
                testing::HasSubstr("expected SIGUSR1, SIGUSR2, SIGHUP or SIGQUIT"));
  });
}

}  // namespace
}  // namespace gtopk::test
