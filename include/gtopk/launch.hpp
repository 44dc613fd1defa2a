/// @file
/// What a launcher tells each process by environment variables (torchrun, srun) or by PMIx (mpirun,
/// prterun, `srun --mpi=pmix`), and the TCP store that rank 0 then serves. It is for programs
/// without torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gtopk/directory.hpp"
#include "gtopk/key_value_store.hpp"

namespace gtopk {

/// What a launcher tells each process of the job.
struct LaunchEnvironment {
  std::uint32_t rank = 0;        ///< this process's rank
  std::uint32_t world_size = 1;  ///< number of ranks in the job
  std::string host;              ///< host of rank 0
  std::uint16_t port = 0;        ///< port of rank 0's store
  bool pmix = false;             ///< host and port come from PMIx, once rank 0 has joined
  /// This rank's number on its host, if the launcher says so.
  std::optional<std::uint32_t> local_rank{};
  /// How many ranks run on this host, if the launcher says so.
  std::optional<std::uint32_t> local_world_size{};
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; the port is MASTER_PORT + 2 if torchrun's
/// agent serves torch's store at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True). If RANK is not
/// set, asks the launcher. Throws Error{kBootstrap}, naming the missing or invalid variable, and
/// the reason why the launcher could not be asked.
[[nodiscard]] LaunchEnvironment launch_environment();

/// The same, but ignores RANK and WORLD_SIZE and asks only the launcher: the PMIx server that
/// started this process or, if there is none, the variables that srun sets for a step's tasks. In a
/// step the host is the step's first, and the port follows from the numbers of job and step;
/// MASTER_ADDR and MASTER_PORT override them. Throws Error{kBootstrap} if no launcher has numbered
/// this process.
[[nodiscard]] LaunchEnvironment launcher_environment();

/// Whether the environment shows such a launcher. Throws Error{kBootstrap} if srun's variables
/// contradict one another.
[[nodiscard]] bool has_launcher();

/// Joins the job's store. Rank 0 serves it at `environment.port`. If its store is destroyed while
/// others are connected, the server stays until the process ends, which then waits at most
/// `at_most` for them to leave. Ranks that have left, including rank 0, may join again in any
/// order. Ranks other than 0 connect at first use, retrying for `at_most`, which also limits each
/// set and add. With PMIx they first wait up to `at_most` for rank 0 to join. Rank 0 accepts only
/// clients that know the job's secret (GTOPK_SECRET, GTOPK_SECRET_FILE; with PMIx, a secret that
/// rank 0 draws), or all clients if there is none. Throws Error{kBootstrap}.
[[nodiscard]] std::unique_ptr<KeyValueStore> join_rendezvous(const LaunchEnvironment& environment,
                                                             std::chrono::nanoseconds at_most);

/// The job's secret: GTOPK_SECRET, or the contents of GTOPK_SECRET_FILE, or the secret that rank 0
/// drew for find_service(); empty if there is none. Ranks prove to one another that they know it,
/// in the first hello and in every later notice. Give it to directory_over() if ranks meet in a
/// store that others can reach. Throws Error{kBootstrap} for an invalid secret.
[[nodiscard]] std::string job_secret();

/// Makes the job's directory over that store. With PMIx, the processes' addresses are in PMIx
/// itself and are fetched one by one when needed.
[[nodiscard]] std::shared_ptr<Directory> join_job(const LaunchEnvironment& environment,
                                                  std::chrono::nanoseconds at_most);

/// The address at which this rank reaches a service of rank 0.
struct ServiceAddress {
  std::string host;        ///< a name or a numeric address
  std::uint16_t port = 0;  ///< TCP port
};

/// Finds a service of the caller's on rank 0, such as torch's store, in a job started by PMIx. Rank
/// 0 passes the service's port, which must not change during the job; the others pass 0 and get
/// that port with an address of rank 0 that they can reach. All ranks get a secret that rank 0
/// draws: see job_secret(). Throws Error{kBootstrap}.
[[nodiscard]] ServiceAddress find_service(std::uint16_t port, std::chrono::nanoseconds at_most);

}  // namespace gtopk
