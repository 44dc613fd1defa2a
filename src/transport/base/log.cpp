#include "src/transport/base/log.hpp"

#include <cstdlib>
#include <memory>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace gtopk::transport {

spdlog::logger& log() {
  static spdlog::logger* const logger = [] {
    auto made = std::make_unique<spdlog::logger>("gtopk",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const char* const level = std::getenv("GTOPK_LOG_LEVEL");
    made->set_level(level == nullptr ? spdlog::level::warn : spdlog::level::from_str(level));
    made->set_pattern("[gtopk %H:%M:%S.%e %l] %v");
    return made.release();
  }();
  return *logger;
}

void set_log_rank(int rank) {
  log().set_pattern("[gtopk %H:%M:%S.%e %l rank " + std::to_string(rank) + "] %v");
}

}  // namespace gtopk::transport
