// Topology: what hwloc says of a machine, as the plain value that the plan reads. It decides
// nothing.
#pragma once

#include <string>

#include "src/transport/topology/topology.hpp"

namespace gtopk::topology {

/// This machine; `allowed` is the calling thread's mask, as mpirun, srun, taskset or a container's
/// cgroup have set it. Without hwloc, or where it fails, nothing but `allowed` and `source`, which
/// says why.
[[nodiscard]] Topology probe_this_machine();

/// Another, of a file that `lstopo FILE.xml` wrote there (hwloc 2). Throws Error{kUnsupported}
/// without hwloc, Error{kInvalidArgument} for a file that hwloc does not read.
[[nodiscard]] Topology probe_file(const std::string& path);

/// The cores on which the calling thread may run.
[[nodiscard]] Cores allowed_here();

}  // namespace gtopk::topology
