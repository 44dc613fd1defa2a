// gtopk-info: a machine's nodes, NICs and GPUs, and the plan of ranks on it, as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/transport/topology/plan.hpp"
#include "src/transport/topology/topology.hpp"

namespace gtopk::programs::info {

/// Formats bytes as "23.5 GiB".
[[nodiscard]] std::string gibibytes(std::uint64_t bytes);
/// Formats bytes as "4.0 MiB".
[[nodiscard]] std::string mebibytes(std::uint64_t bytes);

/// Describes a machine, and lists the nearest NICs beside each GPU.
[[nodiscard]] std::vector<std::string> layout_text(const topology::Topology& machine);
/// Describes a plan. `binding` is the actual binding, if it differs from the plan.
[[nodiscard]] std::vector<std::string> layout_text(const topology::Plan& plan,
                                                   const std::string& binding);

[[nodiscard]] nlohmann::json layout_json(const topology::Topology& machine);
[[nodiscard]] nlohmann::json layout_json(const topology::Plan& plan, const std::string& binding);

/// gtopk-info --topology: returns the plan of each of `ranks` ranks on another machine; 0 means one
/// per GPU. `job` is what the environment says about interfaces and GPUs.
[[nodiscard]] std::vector<std::string> planned_elsewhere(const topology::Topology& machine,
                                                         topology::JobPlace job,
                                                         std::uint32_t ranks, bool json);

}  // namespace gtopk::programs::info
