// Tests of the topology: a machine read from a file in this folder.
#pragma once

#include <string>

#include <fmt/format.h>

#include "src/transport/topology/probe.hpp"

namespace gtopk::topology {

inline Topology machine(const std::string& name) {
  return probe_file(fmt::format("{}/{}.xml", MACHINES, name));
}

}  // namespace gtopk::topology
