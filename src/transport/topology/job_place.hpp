// Topology: a rank's place among those of its host, as the variables of its launcher say.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "src/transport/topology/plan.hpp"

namespace gtopk::topology {

/// A variable's value; absent where it is not set.
using Variables = std::function<std::optional<std::string>(const char*)>;

/// Of torchrun, Open MPI's mpirun, MPICH's or srun; rank 0 of 1 where none says it. Interfaces are
/// those of UCX_NET_DEVICES (GTOPK_UCX_NET_DEVICES beats it), GPUs those of CUDA_VISIBLE_DEVICES;
/// none if it names them by anything but numbers. Invalid values are ignored, as other programs
/// read these variables too.
[[nodiscard]] JobPlace job_place(const Variables& variables);

/// Of this process.
[[nodiscard]] std::optional<std::string> variable_here(const char* name);

}  // namespace gtopk::topology
