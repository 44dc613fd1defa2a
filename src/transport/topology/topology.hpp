// Topology: what must be known about a machine to place ranks on it: cores, NUMA nodes, NICs and
// GPUs, and what is near what. It is a plain value that the probe makes, from this machine or a
// file, and the plan reads.
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
  Cores cores{};             ///< empty if the node has only memory
};

/// A NIC or a GPU.
struct Device {
  std::string name;    ///< name of the interface, or "GPU 0"
  std::string rdma{};  ///< the RDMA device on the same card
  std::string bus{};   ///< "0000:17:00.0"
  Cores near{};        ///< all cores if the machine does not say
  std::vector<std::uint64_t>
      bridges{};   ///< bridges above it, from the host bridge down, by the probe's numbers
  bool up = true;  ///< for a NIC; a file does not say
  /// For a NIC: the networks of its addresses, such as "10.1.0.0/16". A file does not have them.
  std::vector<std::string> networks{};
};

struct Topology {
  std::string source;  ///< "hwloc 2.9.0"; or, if `cores` is empty, why nothing is known
  Cores cores{};       ///< all cores of the machine
  Cores allowed{};     ///< cores on which this process may run
  std::vector<Package> packages{};
  std::vector<Node> nodes{};
  std::vector<Device> nics{};
  std::vector<Device> gpus{};  ///< ordered by bus number
};

}  // namespace gtopk::topology
