// Programs: what all of them do alike on the command line: exit codes, one line per error, sizes, a
// closed stdout. It knows no network.
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

/// Invalid arguments: exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parses the command line and runs `body`, which returns the exit code. An error is one line on
/// stderr that begins with the program's name.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

/// Puts this before error texts: "rank 3".
void name_in_errors(std::string who);

/// Prints one line to stdout at once. Returns false once stdout is closed.
[[nodiscard]] bool print_line(std::string_view line);

/// Sizes from `begin` to `end`, each `factor` times the previous one; `end` is the last.
[[nodiscard]] std::vector<std::uint64_t> sizes_between(std::uint64_t begin, std::uint64_t end,
                                                       double factor);

/// A number with an optional K, M or G (powers of 1024), for CLI11.
void add_size(CLI::App& app, const std::string& names, std::uint64_t& size,
              const std::string& about);

/// The named choices, separated by commas; `all` means all of them. They come in the library's
/// order. Throws a UsageError that lists the choices.
[[nodiscard]] std::vector<std::string> chosen(std::string_view option, const std::string& names,
                                              const std::vector<Choice>& choices);

/// "gtopk         recursive doubling ...", one line each, for --help.
[[nodiscard]] std::string described(const std::vector<Choice>& choices);

/// Throws UsageError when a rank would need more memory than this host has.
void check_memory(std::uint64_t bytes, std::string_view what);

/// Opens `path` for writing at once, so that a run does not end with results that cannot be saved;
/// does not truncate it before write().
class JsonFile {
 public:
  explicit JsonFile(std::string path);
  /// Throws std::runtime_error.
  void write(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace gtopk::programs
