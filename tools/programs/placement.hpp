// Programs: where each rank of a job is, for --topology: host, cores, binding, NIC.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/programs/job.hpp"

namespace gtopk::programs {

/// Describes a rank: "rank 0 on vm, cores 0-1; engine thread not bound: ...; NIC eth0: the only
/// one".
[[nodiscard]] std::string placement_of(std::uint32_t rank);

/// Returns this text for every rank, by rank. All ranks must call it. Texts longer than 1,023 bytes
/// are cut.
[[nodiscard]] std::vector<std::string> placements(Job& job);

}  // namespace gtopk::programs
