// Transport over UCX: space for POSIX shared memory, in /dev/shm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gtopk::transport {

/// Returns the free bytes in /dev/shm, or in UCX_POSIX_DIR; 0 if unknown.
[[nodiscard]] std::uint64_t posix_space();

/// If UCX_TLS includes POSIX shared memory and there is too little space for it, says how much
/// there is and what to do. Otherwise returns "".
[[nodiscard]] std::string posix_shortage(std::string_view tls);

}  // namespace gtopk::transport
