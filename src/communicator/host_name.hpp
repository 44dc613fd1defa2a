// Communicator: the name of a rank's host, by which the ranks of a group know which of them share a
// host.
#pragma once

#include <cstddef>
#include <string>

#include "src/transport/base/transport.hpp"

namespace gtopk {

inline constexpr std::size_t kMostHostBytes = 255;

/// Returns a name that is equal for processes that share a host: GTOPK_HOST in the environment, or
/// else `told`, or else the boot id and IPC namespace. A process that cannot read the latter gets a
/// host of its own. Throws Error{kInvalidArgument} if the name is too long.
[[nodiscard]] std::string host_name(const transport::PeerInfo& self, const std::string& told);

}  // namespace gtopk
