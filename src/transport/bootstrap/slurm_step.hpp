// Bootstrap: this process as a task of a Slurm step, from the variables that srun sets for it. It
// is used if no PMIx server started the process. It opens nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gtopk::bootstrap {

/// A variable of the environment; nullopt if it is not set or empty.
using Variables = std::function<std::optional<std::string>(const char* name)>;

struct SlurmStep {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::string first_host;  ///< the host of rank 0, by Slurm's name for it
  /// Derived from the job and step numbers, below the ports that Linux gives to outgoing
  /// connections. It is the same for all tasks of the step, and different for steps and jobs that
  /// run side by side.
  std::uint16_t port = 0;
  /// This task's number on its host, and how many tasks the step has there; nullopt if unknown.
  std::optional<std::uint32_t> local_rank;
  std::optional<std::uint32_t> local_size;
  std::string description;  ///< "Slurm step 17.0"
};

/// Returns this process's step, or nullopt for a process that is not a task of srun's. That is the
/// case if a batch script or a shell of salloc started it directly, in which case the environment
/// describes tasks that srun could start, or if another launcher started it as part of its own job.
/// Throws Error{kBootstrap} naming the variable that is missing or invalid.
[[nodiscard]] std::optional<SlurmStep> slurm_step(const Variables& variables);

/// Says why slurm_step() is nullopt: "it runs in Slurm job 17, but srun did not start it: ...".
[[nodiscard]] std::string why_no_slurm_step(const Variables& variables);

/// Returns the first host of a list: "gpu07" for "gpu[07-09,12],login1".
[[nodiscard]] std::string first_host(std::string_view hosts);

}  // namespace gtopk::bootstrap
