// Public surface: what a launcher such as torchrun tells each process by environment variables, and
// the store over TCP that rank 0 then serves. For programs without torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "gtopk/key_value_store.hpp"

namespace gtopk {

struct LaunchEnvironment {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string host;  ///< rank 0's
  std::uint16_t port = 0;
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Throws Error{kBootstrap} naming the
/// variable that is missing or makes no sense.
[[nodiscard]] LaunchEnvironment launch_environment();

/// The store of a job with that environment. Rank 0 serves it at `environment.port` and, when its
/// store is destroyed, keeps on serving until the others have left, but no longer than `at_most`.
/// The others connect at the first use, trying for `at_most`, which is also the limit of each set
/// and add. There is no authentication: use a network that you trust.
[[nodiscard]] std::unique_ptr<KeyValueStore> join_rendezvous(const LaunchEnvironment& environment,
                                                             std::chrono::nanoseconds at_most);

}  // namespace gtopk
