// gtopk-info: what this machine and this process have, according to the kernel and hwloc. It makes
// no judgement.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/transport/topology/plan.hpp"
#include "src/transport/topology/topology.hpp"

namespace gtopk::programs::info {

struct Interface {
  std::string name;
  bool up = false;  ///< up and running, with a carrier
  bool loopback = false;
  bool card = false;  ///< backed by a device
  std::uint32_t mtu = 0;
  std::string tunnel{};                     ///< such as "WireGuard"; empty if it is none
  std::vector<std::string> addresses{};     ///< IPv4, and IPv6 beyond link-local
  std::optional<std::uint64_t> megabits{};  ///< megabits per second, if the driver knows
};

/// The kernel's TCP settings, unless a route or a socket overrides them.
struct Tcp {
  std::string congestion_control;
  std::uint64_t receive_buffer = 0;  ///< bytes, at most: net.ipv4.tcp_rmem
  std::uint64_t send_buffer = 0;     ///< bytes, at most: net.ipv4.tcp_wmem
};

struct Limit {
  std::uint64_t soft = 0;  ///< UINT64_MAX means unlimited
  std::uint64_t hard = 0;
};

struct Machine {
  std::string name;
  std::string kernel;
  std::uint32_t cores = 0;          ///< cores that are online
  std::uint32_t cores_allowed = 0;  ///< cores that this process may use
  std::uint64_t memory = 0;         ///< bytes
  Limit open_files{};
  Limit locked_memory{};            ///< bytes
  std::uint64_t shared_memory = 0;  ///< bytes that /dev/shm can hold
  Tcp tcp{};
  std::vector<Interface> interfaces{};
  std::vector<std::string> rdma_devices{};
  std::vector<std::string> gpus{};
  /// UCX_…, GTOPK_… and launchers' variables. For a secret, it has only the fact that it is set.
  std::map<std::string, std::string> environment{};
  std::vector<std::string> ucx_libraries{};   ///< paths of every libucp in this process
  bool ucx_has_rdma = false;                  ///< libuct_ib is beside the first libucp
  std::optional<std::uint32_t> free_ports{};  ///< of GTOPK_PORTS; nullopt if it is no range
  topology::Topology topology{};
  topology::JobPlace place{};  ///< this rank's place on its host
  topology::Plan plan{};       ///< this rank's plan
};

[[nodiscard]] std::vector<Interface> interfaces_here();
[[nodiscard]] Tcp tcp_here();
/// Returns which kind of tunnel an interface is, by its folder in /sys/class/net; empty if it is
/// none.
[[nodiscard]] std::string tunnel_of(const std::filesystem::path& folder);

/// Describes this machine. Must be called after UCX has been loaded.
[[nodiscard]] Machine this_machine();

}  // namespace gtopk::programs::info
