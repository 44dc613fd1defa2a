// Bootstrap: this process as a task of a Slurm step, from the variables that srun sets for it. Used
// if no PMIx server started the process. It opens nothing.
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
  std::string first_host;  ///< where rank 0 runs, by Slurm's name for it
  /// Derived from job and step, below the ports that Linux gives to outgoing connections. The same
  /// for all tasks of the step, and different for steps and jobs that run side by side.
  std::uint16_t port = 0;
  /// This task's number on its host, and how many tasks the step has there; nullopt if unknown.
  std::optional<std::uint32_t> local_rank;
  std::optional<std::uint32_t> local_size;
  std::string description;  ///< "Slurm step 17.0"
};

/// Nullopt for a process that is not a task of srun's. This includes one that a batch script or a
/// shell of salloc starts by itself, whose environment describes the tasks that srun could start,
/// and one that another launcher started as part of its own job. Throws Error{kBootstrap} naming
/// the variable that is missing or invalid.
[[nodiscard]] std::optional<SlurmStep> slurm_step(const Variables& variables);

/// Why slurm_step() is nullopt: "it runs in Slurm job 17, but srun did not start it: ...".
[[nodiscard]] std::string why_no_slurm_step(const Variables& variables);

/// The first host of a list such as "gpu[07-09,12],login1": "gpu07".
[[nodiscard]] std::string first_host(std::string_view hosts);

}  // namespace gtopk::bootstrap
