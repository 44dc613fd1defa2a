// Transport over UCX: what others see of this room. It shows nothing of ucp.h.
//
// Settings: UCX_<KEY> and GTOPK_UCX_<KEY> in the environment beat what the program and this room
// choose; describe() and the log say which won. docs/ucx.md has the measured defaults.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/base/transport.hpp"

namespace gtopk::transport {

struct UcxOptions {
  /// {"TLS", "tcp,self"}: the program's own settings, without the UCX_ in front; they beat this
  /// room's defaults and yield to the environment.
  std::vector<std::pair<std::string, std::string>> settings;
};

/// Starts UCX in this process, with a worker of its own. Throws Error{kTransport} with what UCX
/// said, Error{kUnsupported} when the library that was loaded is older than the one this was built
/// for.
[[nodiscard]] std::unique_ptr<Transport> make_ucx_transport(
    const UcxOptions& options = UcxOptions());

/// Over what a transport of make_ucx_transport() reaches a peer: "posix/memory, tcp/eth0", as UCX
/// tells; empty before they are connected.
[[nodiscard]] std::string lanes(const Transport& transport, PeerId peer);

}  // namespace gtopk::transport
