// Bootstrap: what a launcher such as torchrun tells each process by environment variables.
#pragma once

#include "transport/bootstrap/socket.hpp"

namespace gtopk::bootstrap {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  Endpoint server;  ///< rank 0's rendezvous
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Throws Error{kBootstrap} naming the
/// variable that is missing or makes no sense.
[[nodiscard]] LaunchEnvironment launch_environment();

}  // namespace gtopk::bootstrap
