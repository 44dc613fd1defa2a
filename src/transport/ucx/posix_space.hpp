// Transport over UCX: room for POSIX's shared memory, in /dev/shm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gtopk::transport {

/// Bytes left in /dev/shm, or where UCX_POSIX_DIR says; 0 if that is not known.
[[nodiscard]] std::uint64_t posix_room();

/// If UCX_TLS includes POSIX's shared memory and there is too little room for it: how much there
/// is, and what to do. Else "".
[[nodiscard]] std::string posix_shortage(std::string_view tls);

}  // namespace gtopk::transport
