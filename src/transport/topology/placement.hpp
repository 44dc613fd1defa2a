// Topology: where this process's engine runs, by the plan for this machine or by GTOPK_BIND; and
// the binding of a thread.
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
  Cores cores{};  ///< for kCores
};

/// "auto", "none", or a list of cores, all of them among `allowed`; empty: auto. Throws
/// Error{kInvalidArgument}.
[[nodiscard]] BindSetting bind_setting(std::string_view text, const Cores& allowed);

struct Placement {
  Cores engine{};      ///< empty: not bound
  std::string text{};  ///< "cores 0-15, node 0: eth0 is near cores 0-15"; "not bound: ..."
  /// For UCX_NET_DEVICES, if the environment does not set it; empty: leave it unset.
  std::string devices{};
  std::string why_devices{};
};

/// GTOPK_BIND overrides the plan.
[[nodiscard]] Placement placement(const BindSetting& setting, const Plan& plan);

/// The placement of this process. hwloc is asked only if it could make a difference: with more than
/// one NUMA node. Throws Error{kInvalidArgument} for an invalid GTOPK_BIND.
[[nodiscard]] Placement placement_here();

/// Binds the calling thread; if the kernel refuses, that is logged. By the kernel's default policy,
/// memory that the thread touches first is on its own node from then on.
void bind_this_thread(const Placement& placement);

}  // namespace gtopk::topology
