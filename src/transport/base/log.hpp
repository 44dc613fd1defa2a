// Transport, base: the process's log. One line per fact, on stderr, prefixed with the rank once it
// is known. GTOPK_LOG_LEVEL (trace, debug, info, warn, error, critical, off; default warn) sets the
// level.
#pragma once

#include <cstdint>
#include <string_view>

#include <fmt/format.h>

namespace gtopk::transport {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError, kOff };

/// Formatting is compiled once, in write(); spdlog's own functions would be compiled into every
/// file that logs.
class Log {
 public:
  template <class... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::kDebug, text, fmt::make_format_args(args...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::kInfo, text, fmt::make_format_args(args...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::kWarn, text, fmt::make_format_args(args...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) {
    write(LogLevel::kError, text, fmt::make_format_args(args...));
  }

  /// Lines below this level are not written.
  void set_level(LogLevel level);

 private:
  void write(LogLevel level, fmt::string_view text, fmt::format_args args);
};

/// Made at first use, never destroyed, as threads may log while the process exits.
[[nodiscard]] Log& log();

/// In a handler: logs as an error what was thrown, and by whom. For callbacks, whose exceptions
/// must stop neither other callbacks nor the thread.
void log_thrown(std::string_view by);

/// Names this rank in every later line.
void set_log_rank(int rank);

}  // namespace gtopk::transport
