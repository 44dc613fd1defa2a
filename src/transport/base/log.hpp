// Transport, base: the process's log. One line per fact, on stderr, with the rank in front once it
// is known. GTOPK_LOG_LEVEL (trace, debug, info, warn, error, off; default warn) chooses what is
// seen.
#pragma once

#include <spdlog/logger.h>

namespace gtopk::transport {

/// The logger; made on first use, never destroyed (threads may log while the process exits).
[[nodiscard]] spdlog::logger& log();

/// Names this rank in every later line.
void set_log_rank(int rank);

}  // namespace gtopk::transport
