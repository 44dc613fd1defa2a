// Programs: what all programs share on the command line: exit codes, one line per error, sizes, and
// a closed stdout. It does not know the network.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "gtopk/types.hpp"

namespace gtopk::programs {

inline constexpr int kFine = 0;
inline constexpr int kFailed = 1;  ///< a wrong element, or an error
inline constexpr int kUsage = 2;

/// Reports invalid arguments; the exit code is 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parses the command line and runs `body`, which returns the exit code. An error is one line on
/// stderr that begins with the program's name.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

/// Puts this text, such as "rank 3", before error texts.
void name_in_errors(std::string who);

/// Prints one line to stdout at once. Returns false once stdout is closed.
[[nodiscard]] bool print_line(std::string_view line);

/// Returns sizes from `begin` to `end`, each `factor` times the previous one; `end` is the last.
[[nodiscard]] std::vector<std::uint64_t> sizes_between(std::uint64_t begin, std::uint64_t end,
                                                       double factor);

/// Adds an option to CLI11 that takes a number with an optional K, M or G (powers of 1024).
void add_size(CLI::App& app, const std::string& names, std::uint64_t& size,
              const std::string& about);

/// Returns the choices named in a comma-separated list, in the library's order; `all` means all of
/// them. Throws a UsageError that lists the choices.
[[nodiscard]] std::vector<std::string> chosen(std::string_view option, const std::string& names,
                                              const std::vector<Choice>& choices);

/// Describes choices for --help, one line each: "gtopk         recursive doubling ...".
[[nodiscard]] std::string described(const std::vector<Choice>& choices);

/// Throws UsageError if a rank would need more memory than this host has.
void check_memory(std::uint64_t bytes, std::string_view what);

/// Opens `path` for writing at once, so that a run does not end with results that cannot be saved.
/// The file is not truncated before write().
class JsonFile {
 public:
  explicit JsonFile(std::string path);
  /// Writes the text. Throws std::runtime_error.
  void write(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace gtopk::programs
