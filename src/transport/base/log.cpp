#include "src/transport/base/log.hpp"

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace gtopk::transport {
namespace {

spdlog::level::level_enum of_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

/// Sets the level from the environment.
void set_level(spdlog::logger& logger) {
  logger.set_level(spdlog::level::warn);
  const char* const wanted = std::getenv("GTOPK_LOG_LEVEL");
  if (wanted == nullptr) {
    return;
  }
  const auto level = spdlog::level::from_str(wanted);
  // spdlog returns off for an unknown name.
  if (level != spdlog::level::off || std::string_view(wanted) == "off") {
    logger.set_level(level);
    return;
  }
  logger.warn(
      fmt::format("GTOPK_LOG_LEVEL is '{}': expected trace, debug, info, warn, error, "
                  "critical or off; the level stays at warn",
                  wanted));
}

spdlog::logger& logger() {
  static spdlog::logger* const made = [] {
    auto making = std::make_unique<spdlog::logger>(
        "gtopk", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    making->set_pattern("[gtopk %H:%M:%S.%e %l] %v");
    set_level(*making);
    return making.release();
  }();
  return *made;
}

}  // namespace

void Log::set_level(LogLevel level) { logger().set_level(of_spdlog(level)); }

void Log::write(LogLevel level, fmt::string_view text, fmt::format_args args) {
  const auto as = of_spdlog(level);
  if (logger().should_log(as)) {
    logger().log(as, fmt::vformat(text, args));
  }
}

Log& log() {
  static Log the_log;
  return the_log;
}

void log_thrown(std::string_view by) {
  try {
    throw;
  } catch (const std::exception& thrown) {
    log().error("{} threw: {}", by, thrown.what());
  } catch (...) {
    log().error("{} threw something that is not a std::exception", by);
  }
}

void set_log_rank(int rank) {
  logger().set_pattern("[gtopk %H:%M:%S.%e %l rank " + std::to_string(rank) + "] %v");
}

}  // namespace gtopk::transport
