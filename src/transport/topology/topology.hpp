// Topology: what placing ranks on a machine needs to know of it: cores, NUMA nodes, NICs and GPUs,
// and what is near what. A plain value: the probe makes it, of this machine or of a file, and the
// plan reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/transport/topology/cores.hpp"

namespace gtopk::topology {

struct Package {
  std::uint32_t number = 0;
  Cores cores{};
};

struct Node {
  std::uint32_t number = 0;
  std::uint64_t memory = 0;  ///< bytes
  Cores cores{};             ///< none: memory alone
};

/// A NIC or a GPU.
struct Device {
  std::string name;    ///< the interface, or "GPU 0"
  std::string rdma{};  ///< the RDMA device on the same card
  std::string bus{};   ///< "0000:17:00.0"
  Cores near{};        ///< all cores where the machine does not say
  std::vector<std::uint64_t>
      bridges{};   ///< above it, from the host bridge down; numbers of the probe's
  bool up = true;  ///< of a NIC; a file does not say
  /// Of a NIC: the networks of its addresses, "10.1.0.0/16"; a file does not say.
  std::vector<std::string> networks{};
};

struct Topology {
  std::string source;  ///< "hwloc 2.9.0"; why nothing is known, where `cores` are none
  Cores cores{};       ///< all of the machine
  Cores allowed{};     ///< on which this process may run
  std::vector<Package> packages{};
  std::vector<Node> nodes{};
  std::vector<Device> nics{};
  std::vector<Device> gpus{};  ///< by bus number
};

}  // namespace gtopk::topology
