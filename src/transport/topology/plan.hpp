// Topology: where a rank's engine should run and which NIC is its own, with reasons. A pure
// function of the machine and of the rank's place in the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/transport/topology/topology.hpp"

namespace gtopk::topology {

/// A rank among those of its host, and what its environment has chosen.
struct JobPlace {
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
  std::vector<std::string> interfaces{};  ///< that UCX may use, NICs or RDMA devices; none: all
  bool interfaces_set = false;            ///< UCX_NET_DEVICES is set, be it to `all`
  bool beyond_tcp = false;                ///< UCX_TLS may let UCX use RDMA
  /// Of the GPUs by bus number, those that it may use; absent: all.
  std::optional<std::vector<std::uint32_t>> gpus{};
};

struct Plan {
  /// For the engine's thread; none: it stays where the process is.
  Cores engine{};
  /// For the compute thread: all that the process may use, as what it reads and writes, gradients
  /// and residuals, lies where the caller's threads have put it.
  Cores compute{};
  std::optional<std::uint32_t> node{};  ///< by which memory for messages should lie
  std::string why{};                    ///< of `engine`
  std::string gpu{};                    ///< this rank's; empty: none
  std::string nic{};                    ///< this rank's; empty: none that is known
  std::string rdma{};                   ///< the RDMA device on its card
  std::string why_nic{};
  /// UCX can use no other NIC, or all that it can are near the same cores.
  bool nic_is_certain = false;
  /// What UCX_NET_DEVICES is set to for this rank; empty: UCX is not told.
  std::string devices{};
  std::string why_devices{};
};

inline constexpr const char* kOneNode =
    "the machine has one NUMA node: nothing on it is nearer than the rest";

[[nodiscard]] Plan plan(const Topology& machine, const JobPlace& job);

/// How near two devices are, the nearest first.
enum class Nearness : std::uint8_t { kSwitch, kHostBridge, kCores, kMachine };
[[nodiscard]] const char* to_string(Nearness nearness);
[[nodiscard]] Nearness nearness(const Device& a, const Device& b);

/// The numbers of the NICs, among `nics` of them, that are nearest to a GPU.
[[nodiscard]] std::vector<std::size_t> nearest(const Topology& machine,
                                               const std::vector<std::size_t>& nics,
                                               const Device& gpu);

}  // namespace gtopk::topology
