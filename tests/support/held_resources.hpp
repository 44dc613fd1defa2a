// Test support: resources of this process that could be left behind: threads, descriptors and
// shared memory. Those of other processes on the machine never count. It knows no transport.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace gtopk::test {

/// This process's resources now.
struct HeldResources {
  HeldResources();

  std::ptrdiff_t threads;
  std::ptrdiff_t descriptors;
  std::ptrdiff_t mappings;  ///< of shared memory, whoever created it, named or not
  std::ptrdiff_t segments;  ///< of System V, created here and not yet removed

  [[nodiscard]] bool no_more_than(const HeldResources& before) const;
  friend std::ostream& operator<<(std::ostream& out, const HeldResources& held);
};

/// Whether this process holds no more than before. A joined thread stays listed for a moment, so
/// this may look several times.
[[nodiscard]] testing::AssertionResult holds_no_more_than(const HeldResources& before);

/// A directory for files that would otherwise be in /dev/shm, which is shared by all and does not
/// tell their owner: pass it to UCX as UCX_POSIX_DIR. Removed with its contents.
class SharedMemoryDirectory {
 public:
  SharedMemoryDirectory();
  SharedMemoryDirectory(const SharedMemoryDirectory&) = delete;
  SharedMemoryDirectory& operator=(const SharedMemoryDirectory&) = delete;
  SharedMemoryDirectory(SharedMemoryDirectory&&) = delete;
  SharedMemoryDirectory& operator=(SharedMemoryDirectory&&) = delete;
  ~SharedMemoryDirectory();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The names in it now.
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::string path_;
};

}  // namespace gtopk::test
