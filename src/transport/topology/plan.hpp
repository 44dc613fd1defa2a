// Topology: where a rank's engine should run and which NIC it should use, with reasons. A pure
// function of the machine and of the rank's place in the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/transport/topology/topology.hpp"

namespace gtopk::topology {

/// A rank among those of its host, and the choices of its environment.
struct JobPlace {
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
  std::vector<std::string> interfaces{};  ///< those that UCX may use, NICs or RDMA devices; empty:
                                          ///< all
  bool interfaces_set = false;            ///< UCX_NET_DEVICES is set, even if to `all`
  bool beyond_tcp = false;                ///< UCX_TLS may let UCX use RDMA
  /// The GPUs that it may use, numbered by bus; absent: all.
  std::optional<std::vector<std::uint32_t>> gpus{};
};

struct Plan {
  /// For the engine's thread; empty: it stays where the process is.
  Cores engine{};
  /// For the compute thread: all that the process may use, because what it reads and writes,
  /// gradients and residuals, is where the caller's threads have put it.
  Cores compute{};
  std::optional<std::uint32_t> node{};  ///< the node that should hold memory for messages
  std::string why{};                    ///< the reason for `engine`
  std::string gpu{};                    ///< this rank's; empty if it has none
  std::string nic{};                    ///< this rank's; empty if none is known
  std::string rdma{};                   ///< the RDMA device on its card
  std::string why_nic{};
  /// Whether UCX can use no other NIC, or all that it can use are near the same cores.
  bool nic_is_certain = false;
  /// The value of UCX_NET_DEVICES for this rank; empty: leave it unset.
  std::string devices{};
  std::string why_devices{};
};

inline constexpr const char* kOneNode =
    "the machine has one NUMA node: nothing on it is nearer than the rest";

[[nodiscard]] Plan plan(const Topology& machine, const JobPlace& job);

/// How near two devices are, nearest first.
enum class Nearness : std::uint8_t { kSwitch, kHostBridge, kCores, kMachine };
[[nodiscard]] const char* to_string(Nearness nearness);
[[nodiscard]] Nearness nearness(const Device& a, const Device& b);

/// Which of these NICs, by number, are nearest to a GPU.
[[nodiscard]] std::vector<std::size_t> nearest(const Topology& machine,
                                               const std::vector<std::size_t>& nics,
                                               const Device& gpu);

}  // namespace gtopk::topology
