// Transport over UCX: the interface of this module. It exposes nothing from ucp.h.
//
// Settings: UCX_<KEY> and GTOPK_UCX_<KEY> in the environment override the settings of the program
// and this module; describe() and the log say which are in effect. docs/ucx.md has the measured
// defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/base/transport.hpp"

namespace gtopk::transport {

struct UcxOptions {
  /// The program's own settings, without the UCX_ prefix, such as {"TLS", "tcp,self"}. They
  /// override this module's defaults, and the environment overrides them.
  std::vector<std::pair<std::string, std::string>> settings;
  /// The number of connections to each peer that is reached by TCP. 0 means the value of
  /// GTOPK_CONNECTIONS, or one.
  std::uint32_t connections = 0;
};

/// Starts UCX in this process, with its own worker. Throws Error{kTransport} with UCX's message,
/// Error{kUnsupported} if the loaded library is older than the one this was built for, and
/// Error{kInvalidArgument} if GTOPK_CONNECTIONS is not a valid number of connections.
[[nodiscard]] std::unique_ptr<Transport> make_ucx_transport(
    const UcxOptions& options = UcxOptions());

/// The lanes by which a transport of make_ucx_transport() reaches a peer, according to UCX:
/// "posix/memory, tcp/eth0". Empty before they are connected.
[[nodiscard]] std::string lanes(const Transport& transport, PeerId peer);

}  // namespace gtopk::transport
