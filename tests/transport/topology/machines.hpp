// Tests of the topology: a machine out of a file beside them.
#pragma once

#include <string>

#include "src/transport/topology/probe.hpp"

namespace gtopk::topology {

inline Topology machine(const std::string& name) {
  return probe_file(std::string(MACHINES) + "/" + name + ".xml");
}

}  // namespace gtopk::topology
