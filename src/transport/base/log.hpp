// Transport, base: the process's log. Each fact is one line on stderr, prefixed with the rank once
// it is known. GTOPK_LOG_LEVEL (trace, debug, info, warn, error, critical, off; default warn) sets
// the level.
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

/// The log. It is made at first use and never destroyed, because threads may log while the process
/// exits.
[[nodiscard]] Log& log();

/// Logs the current exception as an error, with the name of what threw it. Call it in a catch
/// handler around callbacks, whose exceptions must stop neither other callbacks nor the thread.
void log_thrown(std::string_view by);

/// Adds this rank's number to every later line.
void set_log_rank(int rank);

}  // namespace gtopk::transport
