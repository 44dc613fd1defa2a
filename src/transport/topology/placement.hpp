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
  Cores cores{};  ///< of kCores
};

/// "auto", "none", or a list of cores, all of them among `allowed`; empty: auto. Throws
/// Error{kInvalidArgument}.
[[nodiscard]] BindSetting bind_setting(std::string_view text, const Cores& allowed);

struct Placement {
  Cores engine{};      ///< none: not bound
  std::string text{};  ///< "cores 0-15, node 0: eth0 is near cores 0-15"; "not bound: ..."
  /// For UCX_NET_DEVICES, if the environment does not set it; empty: nothing.
  std::string devices{};
  std::string why_devices{};
};

/// GTOPK_BIND overrides the plan.
[[nodiscard]] Placement placement(const BindSetting& setting, const Plan& plan);

/// Of this process. hwloc is asked only where it could make a difference: with more than one NUMA
/// node. Throws Error{kInvalidArgument} for a GTOPK_BIND that makes no sense.
[[nodiscard]] Placement placement_here();

/// Binds the calling thread; a kernel that refuses is a line in the log. What the thread touches
/// first lies, by the kernel's default policy, on its own node from then on.
void bind_this_thread(const Placement& placement);

}  // namespace gtopk::topology
