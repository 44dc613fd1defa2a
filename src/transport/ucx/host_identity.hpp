// Transport over UCX: where on its machine a process runs, read from /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "src/transport/base/transport.hpp"

namespace gtopk::transport {

/// Reads this process's identity. Fields that cannot be read stay empty; all of them do if /proc
/// shows another process namespace.
[[nodiscard]] HostIdentity host_identity_of_this_process();

/// Returns the start of the process, in clock ticks since boot; 0 if /proc does not show it.
[[nodiscard]] std::uint64_t start_of(pid_t process);

/// Whether every thread of the process is exiting: its sockets may then be closed before it is
/// dead. False if /proc does not show it.
[[nodiscard]] bool is_exiting(pid_t process);

}  // namespace gtopk::transport
