// Test support: a program run as a process: its stdout, its stderr, and how it ended. It dies with
// the test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gtopk::test {

/// How a program ended.
struct Ended {
  int code = -1;  ///< exit code, or 128 + the signal that ended it
  std::string out;
  std::string err;
};

class Program {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// read = false: stdout is a closed pipe, as behind `| head` after head has exited.
  Program(const std::string& path, const std::vector<std::string>& arguments,
          const Variables& environment = {}, bool read = true);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  Program(Program&& other) noexcept
      : process_(std::exchange(other.process_, -1)),
        out_(std::exchange(other.out_, -1)),
        err_(std::exchange(other.err_, -1)) {}
  Program& operator=(Program&&) = delete;
  ~Program();

  [[nodiscard]] pid_t process() const { return process_; }
  /// Its stdout so far.
  [[nodiscard]] std::string out() const;
  /// Waits for its end.
  [[nodiscard]] Ended join();

 private:
  pid_t process_ = -1;
  int out_ = -1;  // memory files
  int err_ = -1;
};

/// A port on which nothing listens now, and none that the kernel gives to another socket before it
/// is used.
[[nodiscard]] std::uint16_t free_port();

}  // namespace gtopk::test
