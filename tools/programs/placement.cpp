#include "tools/programs/placement.hpp"

#include <fmt/format.h>

#include "src/transport/topology/job_place.hpp"
#include "src/transport/topology/placement.hpp"
#include "src/transport/topology/probe.hpp"

namespace gtopk::programs {
namespace {

constexpr std::size_t kMostBytes = 1024;

}  // namespace

std::string placement_of(std::uint32_t rank) {
  const topology::Topology machine = topology::probe_this_machine();
  const topology::Plan plan = topology::plan(machine, topology::job_place(topology::variable_here));
  return fmt::format("rank {} on {}, cores {}; engine thread {}; NIC {}{}: {}", rank,
                     machine_name(), topology::to_text(machine.allowed),
                     topology::placement_here().text, plan.nic.empty() ? "none" : plan.nic,
                     plan.gpu.empty() ? "" : ", " + plan.gpu, plan.why_nic);
}

std::vector<std::string> placements(Job& job) {
  std::vector<char> mine(kMostBytes, '\0');
  placement_of(job.rank()).copy(mine.data(), kMostBytes - 1);
  std::vector<std::string> all;
  for (const std::vector<char>& one : job.gathered(mine)) {
    all.emplace_back(one.data());
  }
  return all;
}

}  // namespace gtopk::programs
