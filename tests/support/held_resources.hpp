// Test support: what this process holds that could be left behind: threads, descriptors and shared
// memory. What other processes of the machine hold is never counted. It knows no transport.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace gtopk::test {

/// Of this process, now.
struct HeldResources {
  HeldResources();

  std::ptrdiff_t threads;
  std::ptrdiff_t descriptors;
  std::ptrdiff_t mappings;  ///< of shared memory, whoever made it and whether or not it has a name
  std::ptrdiff_t segments;  ///< of System V, made here and not removed yet

  [[nodiscard]] bool no_more_than(const HeldResources& before) const;
  friend std::ostream& operator<<(std::ostream& out, const HeldResources& held);
};

/// Holds again no more than before. A thread that has been joined is listed for a moment still, so
/// this may look several times.
[[nodiscard]] testing::AssertionResult holds_no_more_than(const HeldResources& before);

/// A directory for what would else have names in /dev/shm, where they are everybody's and do not
/// say whose: UCX takes it as UCX_POSIX_DIR. Removed with everything in it.
class SharedMemoryDirectory {
 public:
  SharedMemoryDirectory();
  SharedMemoryDirectory(const SharedMemoryDirectory&) = delete;
  SharedMemoryDirectory& operator=(const SharedMemoryDirectory&) = delete;
  SharedMemoryDirectory(SharedMemoryDirectory&&) = delete;
  SharedMemoryDirectory& operator=(SharedMemoryDirectory&&) = delete;
  ~SharedMemoryDirectory();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// What is in it now.
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::string path_;
};

}  // namespace gtopk::test
