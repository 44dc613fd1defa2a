// Topology: where a rank's engine should run and which NIC it should use, with reasons. The plan is
// a pure function of the machine and of the rank's place in the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/transport/topology/topology.hpp"

namespace gtopk::topology {

/// A rank's place among the ranks of its host, and the choices of its environment.
struct JobPlace {
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
  std::vector<std::string> interfaces{};  ///< NICs or RDMA devices for UCX; empty: all
  bool interfaces_set = false;            ///< UCX_NET_DEVICES is set, even if to `all`
  bool beyond_tcp = false;                ///< UCX_TLS may let UCX use RDMA
  /// The GPUs that it may use, numbered by bus. If absent, it may use all.
  std::optional<std::vector<std::uint32_t>> gpus{};
};

struct Plan {
  /// The cores for the engine's thread. If empty, it stays where the process is.
  Cores engine{};
  /// The cores for the compute thread: all that the process may use, because gradients and
  /// residuals are where the caller's threads have put them.
  Cores compute{};
  std::optional<std::uint32_t> node{};  ///< the node that should hold memory for messages
  std::string why{};                    ///< the reason for `engine`
  std::string gpu{};                    ///< this rank's GPU; empty if it has none
  std::string nic{};                    ///< this rank's NIC; empty if none is known
  std::string rdma{};                   ///< the RDMA device on the NIC's card
  std::string why_nic{};
  /// Whether UCX can use no other NIC, or all NICs that it can use are near the same cores.
  bool nic_is_certain = false;
  /// The value of UCX_NET_DEVICES for this rank; if empty, it stays unset.
  std::string devices{};
  std::string why_devices{};
};

inline constexpr const char* kOneNode =
    "the machine has one NUMA node: nothing on it is nearer than the rest";

[[nodiscard]] Plan plan(const Topology& machine, const JobPlace& job);

/// The nearness of two devices, nearest first.
enum class Nearness : std::uint8_t { kSwitch, kHostBridge, kCores, kMachine };
[[nodiscard]] const char* to_string(Nearness nearness);
[[nodiscard]] Nearness nearness(const Device& a, const Device& b);

/// Returns the numbers of the NICs that are nearest to a GPU.
[[nodiscard]] std::vector<std::size_t> nearest(const Topology& machine,
                                               const std::vector<std::size_t>& nics,
                                               const Device& gpu);

}  // namespace gtopk::topology
