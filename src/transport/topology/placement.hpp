// Topology: where this process's engine runs, according to the plan for this machine or to
// GTOPK_BIND, and the binding of a thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/transport/topology/cores.hpp"
#include "src/transport/topology/plan.hpp"

namespace gtopk::topology {

/// The value of GTOPK_BIND.
struct BindSetting {
  enum class Mode : std::uint8_t { kAuto, kNone, kCores };
  Mode mode = Mode::kAuto;
  Cores cores{};  ///< the cores, for kCores
};

/// Parses "auto", "none", or a list of cores, which must all be among `allowed`. An empty text
/// means auto. Throws Error{kInvalidArgument}.
[[nodiscard]] BindSetting bind_setting(std::string_view text, const Cores& allowed);

struct Placement {
  Cores engine{};      ///< if empty, the engine is not bound
  std::string text{};  ///< "cores 0-15, node 0: eth0 is near cores 0-15"; "not bound: ..."
  /// The value for UCX_NET_DEVICES, if the environment does not set it. If empty, it stays unset.
  std::string devices{};
  std::string why_devices{};
};

/// Returns the placement; GTOPK_BIND overrides the plan.
[[nodiscard]] Placement placement(const BindSetting& setting, const Plan& plan);

/// Returns the placement of this process. hwloc is asked only if it could make a difference, which
/// needs more than one NUMA node. Throws Error{kInvalidArgument} for an invalid GTOPK_BIND.
[[nodiscard]] Placement placement_here();

/// Binds the calling thread; if the kernel refuses, that is logged. By the kernel's default policy,
/// memory that the thread touches first is then on the thread's own node.
void bind_this_thread(const Placement& placement);

}  // namespace gtopk::topology
