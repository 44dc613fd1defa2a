#include "tests/support/held_resources.hpp"

#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <system_error>

namespace gtopk::test {
namespace {

std::ptrdiff_t count_entries(const char* directory) {
  std::error_code error;
  return std::distance(std::filesystem::directory_iterator(directory, error),
                       std::filesystem::directory_iterator());
}

/// Without those that are ending: the kernel lists a thread a little longer than a join takes.
std::ptrdiff_t count_threads() {
  constexpr unsigned long kExiting = 4;  // the kernel's PF_EXITING
  std::error_code error;
  std::ptrdiff_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "stat");
    std::string line;
    std::getline(file, line);
    // After the name in parentheses: state, parent, group, session, terminal, its group, flags.
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 6; ++i) {
      fields >> skipped;
    }
    unsigned long flags = 0;
    if (fields >> flags && (flags & kExiting) == 0) {
      ++count;
    }
  }
  return count;
}

std::ptrdiff_t count_shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::ptrdiff_t count = 0;
  while (std::getline(maps, line)) {
    for (const char* const kind : {"/dev/shm/", "/SYSV", "/memfd:"}) {
      if (line.find(kind) != std::string::npos) {
        ++count;
      }
    }
  }
  return count;
}

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

}  // namespace

HeldResources::HeldResources()
    : threads(count_threads()),
      descriptors(count_entries("/proc/self/fd")),
      mappings(count_shared_mappings()),
      segments(count_own_segments()) {}

bool HeldResources::no_more_than(const HeldResources& before) const {
  return threads <= before.threads && descriptors <= before.descriptors &&
         mappings <= before.mappings && segments <= before.segments;
}

std::ostream& operator<<(std::ostream& out, const HeldResources& held) {
  return out << held.threads << " threads, " << held.descriptors << " descriptors, "
             << held.mappings << " mappings of shared memory, " << held.segments
             << " System V segments";
}

testing::AssertionResult holds_no_more_than(const HeldResources& before) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    const HeldResources now;
    if (now.no_more_than(before)) {
      return testing::AssertionSuccess();
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return testing::AssertionFailure() << now << "; before: " << before;
    }
    sched_yield();
  }
}

SharedMemoryDirectory::SharedMemoryDirectory() : path_("/dev/shm/gtopk-test-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "mkdtemp " + path_);
  }
}

SharedMemoryDirectory::~SharedMemoryDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::vector<std::string> SharedMemoryDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

}  // namespace gtopk::test
