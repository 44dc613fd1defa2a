// Topology: hwloc's description of a machine, as the plain value that the plan reads. It decides
// nothing.
#pragma once

#include <string>

#include "src/transport/topology/topology.hpp"

namespace gtopk::topology {

/// Probes this machine. `allowed` is the calling thread's mask, as set by mpirun, srun, taskset or
/// a container's cgroup. Without hwloc, or if it fails, only `allowed` and `source` are set, and
/// `source` says why.
[[nodiscard]] Topology probe_this_machine();

/// Reads another machine from a file that `lstopo FILE.xml` wrote there (hwloc 2). Throws
/// Error{kUnsupported} without hwloc, Error{kInvalidArgument} for a file that hwloc cannot read.
[[nodiscard]] Topology probe_file(const std::string& path);

/// The cores on which the calling thread may run.
[[nodiscard]] Cores allowed_here();

}  // namespace gtopk::topology
