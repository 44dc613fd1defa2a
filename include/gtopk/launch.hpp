// Public surface: what a launcher tells each process, by environment variables (torchrun) or by
// PMIx (mpirun, prterun, srun --mpi=pmix), and the store over TCP that rank 0 then serves. For
// programs without torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gtopk/directory.hpp"
#include "gtopk/key_value_store.hpp"

namespace gtopk {

struct LaunchEnvironment {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string host;        ///< rank 0's
  std::uint16_t port = 0;  ///< of its store
  bool pmix = false;       ///< PMIx tells host and port, once rank 0 has joined
  /// Of this rank among those on its host, and how many these are; by PMIx, where it says so.
  std::optional<std::uint32_t> local_rank{};
  std::optional<std::uint32_t> local_world_size{};
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; the port is MASTER_PORT + 2 where
/// torchrun's agent serves a store of torch's own there (TORCHELASTIC_USE_AGENT_STORE=True). Where
/// RANK is not set, asks the PMIx server that started this process, if one did. Throws
/// Error{kBootstrap} naming the variable that is missing or makes no sense, and why PMIx could not
/// be asked.
[[nodiscard]] LaunchEnvironment launch_environment();

/// The same of the PMIx server alone, whatever the variables say. Throws Error{kBootstrap} where no
/// server started this process.
[[nodiscard]] LaunchEnvironment pmix_environment();

/// The store of a job with that environment. Rank 0 serves it at `environment.port` and, when its
/// store is destroyed, keeps on serving until the others have left, but no longer than `at_most`.
/// The others connect at the first use, trying for `at_most`, which is also the limit of each set
/// and add. With PMIx they first wait for rank 0 to join, for `at_most` likewise. Rank 0
/// lets in who knows the job's secret (GTOPK_SECRET, GTOPK_SECRET_FILE; with PMIx one that rank 0
/// draws), or everybody where there is none. Throws Error{kBootstrap}.
[[nodiscard]] std::unique_ptr<KeyValueStore> join_rendezvous(const LaunchEnvironment& environment,
                                                             std::chrono::nanoseconds at_most);

/// The job's directory: in that store, and with PMIx the processes' addresses in PMIx itself, from
/// which each is got when it is needed.
[[nodiscard]] std::shared_ptr<Directory> join_job(const LaunchEnvironment& environment,
                                                  std::chrono::nanoseconds at_most);

/// Where this rank reaches a service of rank 0's.
struct ServiceAddress {
  std::string host;
  std::uint16_t port = 0;
};

/// In a job that PMIx started, for a service of its own such as torch's store: rank 0 gives the
/// service's port, which stays the same for all its life, the others give 0 and get that port, with
/// an address of rank 0's that answers them. Throws Error{kBootstrap}.
[[nodiscard]] ServiceAddress find_service(std::uint16_t port, std::chrono::nanoseconds at_most);

}  // namespace gtopk
