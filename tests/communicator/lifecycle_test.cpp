// Communicator: a process that starts and ends fifty times holds no more afterwards than it did
// after the first time: no thread, no file descriptor, no shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "communicator/member.hpp"
#include "support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

constexpr int kRounds = 50;

std::ptrdiff_t count_entries(const char* directory) {
  std::error_code error;
  return std::distance(std::filesystem::directory_iterator(directory, error),
                       std::filesystem::directory_iterator());
}

/// System V segments that this process made.
std::ptrdiff_t count_own_segments() {
  std::ifstream table("/proc/sysvipc/shm");
  std::string line;
  std::getline(table, line);  // the names of the columns
  std::ptrdiff_t count = 0;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::int64_t key = 0;
    std::int64_t id = 0;
    std::int64_t mode = 0;
    std::int64_t size = 0;
    std::int64_t creator = 0;
    fields >> key >> id >> mode >> size >> creator;
    count += creator == getpid() ? 1 : 0;
  }
  return count;
}

/// Shared memory that this process has mapped, whoever made it and whether or not it has a name.
std::ptrdiff_t count_shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::ptrdiff_t count = 0;
  while (std::getline(maps, line)) {
    for (const char* const kind : {"/dev/shm/", "/SYSV", "/memfd:"}) {
      if (line.find(kind) != std::string::npos) ++count;
    }
  }
  return count;
}

/// What this process holds, and the names in /dev/shm, which are everybody's.
struct Held {
  std::ptrdiff_t threads = count_entries("/proc/self/task");
  std::ptrdiff_t descriptors = count_entries("/proc/self/fd");
  std::ptrdiff_t mappings = count_shared_mappings();
  std::ptrdiff_t segments = count_own_segments();

  [[nodiscard]] bool no_more_than(const Held& before) const {
    return threads <= before.threads && descriptors <= before.descriptors &&
           mappings <= before.mappings && segments <= before.segments;
  }
  friend std::ostream& operator<<(std::ostream& out, const Held& held) {
    return out << held.threads << " threads, " << held.descriptors << " descriptors, "
               << held.mappings << " mappings of shared memory, " << held.segments
               << " System V segments";
  }
};

std::vector<std::string> names_in_dev_shm() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

/// Names that are there now and were not before. Other programs' come and go: one of ours that was
/// left behind stays.
testing::AssertionResult leaves_no_name(const std::vector<std::string>& before) {
  std::vector<std::string> names = names_in_dev_shm();
  std::erase_if(names, [&](const std::string& name) {
    return std::find(before.begin(), before.end(), name) != before.end();
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!names.empty() && std::chrono::steady_clock::now() < deadline) {
    poll(nullptr, 0, 5);
    std::erase_if(names, [](const std::string& name) {
      return !std::filesystem::exists(std::filesystem::path("/dev/shm") / name);
    });
  }
  if (names.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << names.size() << " new names in /dev/shm, one of them " << names.front();
}

/// Start, meet, one operation, end.
void live_once(ForkedRank& self, int round) {
  std::vector<float> tensor(20'000, static_cast<float>(1 + self.rank()));
  Member member(self);
  const Pending pending;
  const SparseOptions options{.k = 5'000,
                              .algorithm = round % 2 == 0 ? Algorithm::kGtopk : Algorithm::kDense};
  member.group().sparse_all_reduce(tensor.data(), nullptr, tensor.size(), DataType::kFloat32,
                                   options, pending.call());
  const Ending ending = pending.wait();
  ASSERT_TRUE(ending.good()) << ending.text;
  ASSERT_EQ(tensor.front(), 3.0F);
  member.leave();
}

class Lifecycle : public testing::TestWithParam<const char*> {};

TEST_P(Lifecycle, FiftyStartsAndEndsLeaveNothingBehind) {
  const std::vector<std::string> names = names_in_dev_shm();
  const char* const tls = GetParam();
  run_forked_ranks(2,
                   [](ForkedRank& self) {
                     live_once(self,
                               0);  // what UCX keeps for the whole process exists from here on
                     const Held before;
                     int rounds = 1;
                     for (; rounds < kRounds && !testing::Test::HasFailure(); ++rounds)
                       live_once(self, rounds);
                     const Held after;
                     EXPECT_TRUE(after.no_more_than(before)) << after << "; before: " << before;
                     EXPECT_EQ(rounds, kRounds);
                   },
                   {.limit = std::chrono::seconds(250), .environment = {{"UCX_TLS", tls}}});
  EXPECT_TRUE(leaves_no_name(names));
}

INSTANTIATE_TEST_SUITE_P(Every, Lifecycle,
                         testing::Values(kTcp, kSharedMemory, "tcp,posix,sysv,self"),
                         [](const auto& instance) {
                           return std::string(instance.param) == "tcp,posix,sysv,self"
                                      ? std::string("TcpAndSharedMemory")
                                      : name_of_transport(instance.param);
                         });

}  // namespace
}  // namespace gtopk::test
