// Transport over UCX: the interface of this module. It exposes nothing of ucp.h.
//
// Settings: UCX_<KEY> and GTOPK_UCX_<KEY> in the environment override those of the program and this
// module; describe() and the log say which is in effect. docs/ucx.md has the measured defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/base/transport.hpp"

namespace gtopk::transport {

struct UcxOptions {
  /// {"TLS", "tcp,self"}: the program's own settings, without the UCX_ prefix; they override this
  /// module's defaults, and the environment overrides them.
  std::vector<std::pair<std::string, std::string>> settings;
  /// Connections to each peer that is reached by TCP; 0: the value of GTOPK_CONNECTIONS, or one.
  std::uint32_t connections = 0;
};

/// Starts UCX in this process, with its own worker. Throws Error{kTransport} with UCX's message,
/// Error{kUnsupported} if the loaded library is older than the one this was built for, and
/// Error{kInvalidArgument} if GTOPK_CONNECTIONS is not a valid number of connections.
[[nodiscard]] std::unique_ptr<Transport> make_ucx_transport(
    const UcxOptions& options = UcxOptions());

/// How a transport of make_ucx_transport() reaches a peer: "posix/memory, tcp/eth0", according to
/// UCX; empty before they are connected.
[[nodiscard]] std::string lanes(const Transport& transport, PeerId peer);

}  // namespace gtopk::transport
