// Topology: a rank's place among the ranks of its host, according to its launcher's variables.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "src/transport/topology/plan.hpp"

namespace gtopk::topology {

/// A variable's value; absent if it is not set.
using Variables = std::function<std::optional<std::string>(const char*)>;

/// Reads the variables of torchrun, Open MPI's mpirun, MPICH or srun; returns rank 0 of 1 if none
/// is set. Interfaces come from UCX_NET_DEVICES (GTOPK_UCX_NET_DEVICES overrides it), GPUs from
/// CUDA_VISIBLE_DEVICES; there are none if it names them by anything but numbers. Invalid values
/// are ignored, because other programs read these variables too.
[[nodiscard]] JobPlace job_place(const Variables& variables);

/// Returns a variable of this process.
[[nodiscard]] std::optional<std::string> variable_here(const char* name);

}  // namespace gtopk::topology
