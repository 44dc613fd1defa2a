#include "src/transport/topology/plan.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gtopk::topology {
namespace {

using Numbers = std::vector<std::size_t>;

/// The fewest cores to bind to. A thread bound to one core waits for others that run there, even if
/// other cores are idle.
constexpr std::size_t kFewestCores = 2;

bool chosen(const Device& nic, const std::vector<std::string>& interfaces) {
  const auto names_it = [&](const std::string& name) {
    return name == nic.name || name == nic.rdma;
  };
  return interfaces.empty() || std::any_of(interfaces.begin(), interfaces.end(), names_it);
}

/// The NICs that UCX may use.
Numbers candidates(const Topology& machine, const JobPlace& job) {
  Numbers found;
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    if (machine.nics[i].up && chosen(machine.nics[i], job.interfaces)) {
      found.push_back(i);
    }
  }
  return found;
}

std::string names_of(const Topology& machine, const Numbers& nics) {
  std::vector<std::string> names;
  names.reserve(nics.size());
  for (const std::size_t nic : nics) {
    names.push_back(machine.nics[nic].name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<std::size_t> gpu_of(const Topology& machine, const JobPlace& job) {
  Numbers visible;
  if (job.gpus) {
    for (const std::uint32_t each : *job.gpus) {
      if (each < machine.gpus.size()) {
        visible.push_back(each);
      }
    }
  } else {
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
      visible.push_back(i);
    }
  }
  if (visible.empty()) {
    return std::nullopt;
  }
  return visible[job.local_rank % visible.size()];
}

/// GPUs that are equally near to the same NICs share them in the order of their numbers.
std::size_t share_of(const Topology& machine, const Numbers& all, std::size_t gpu,
                     const Numbers& best) {
  std::size_t before = 0;
  for (std::size_t other = 0; other < gpu; ++other) {
    if (nearest(machine, all, machine.gpus[other]) == best) {
      ++before;
    }
  }
  return best[before % best.size()];
}

/// Chooses a NIC without a GPU: the NICs near the cores that this process may use are distributed
/// to the host's ranks in blocks, like launchers distribute cores.
std::size_t by_cores(const Topology& machine, const Numbers& all, const JobPlace& job,
                     std::string& why) {
  Numbers near;
  for (const std::size_t nic : all) {
    if (!common(machine.nics[nic].near, machine.allowed).empty()) {
      near.push_back(nic);
    }
  }
  if (near.empty()) {
    why = "none is near the cores that this process may use";
    near = all;
  } else if (near.size() == 1) {
    why = "it is near the cores that this process may use";
  } else {
    why = fmt::format("chosen for local rank {} of {} from those near its cores ({})",
                      job.local_rank, job.local_size, names_of(machine, near));
  }
  const std::size_t size = std::max(job.local_size, job.local_rank + 1);
  return near[job.local_rank * near.size() / size];
}

void choose_nic(const Topology& machine, const JobPlace& job, Plan& made) {
  const Numbers all = candidates(machine, job);
  const auto gpu = gpu_of(machine, job);
  if (gpu) {
    made.gpu = machine.gpus[*gpu].name;
  }
  if (all.empty()) {
    made.why_nic = job.interfaces.empty()
                       ? "no NIC with a known location is up"
                       : fmt::format("the location of {} is unknown, as for virtual interfaces",
                                     fmt::join(job.interfaces, ", "));
    return;
  }
  std::size_t nic = all.front();
  if (all.size() == 1) {
    made.why_nic = job.interfaces.empty() ? "the only one" : "the only one that UCX may use";
  } else if (gpu) {
    const Device& device = machine.gpus[*gpu];
    const Numbers best = nearest(machine, all, device);
    nic = share_of(machine, all, *gpu, best);
    made.why_nic =
        fmt::format("{} with {}", to_string(nearness(machine.nics[nic], device)), device.name);
  } else {
    nic = by_cores(machine, all, job, made.why_nic);
  }
  const Device& taken = machine.nics[nic];
  made.nic = taken.name;
  made.rdma = taken.rdma;
  made.nic_is_certain = std::all_of(all.begin(), all.end(), [&](std::size_t each) {
    return machine.nics[each].near == taken.near;
  });
}

/// Returns a network in which all of these NICs have an address; empty if there is none.
std::string common_network(const Topology& machine, const Numbers& nics) {
  for (const std::string& network : machine.nics[nics.front()].networks) {
    if (std::all_of(nics.begin(), nics.end(), [&](std::size_t each) {
          const std::vector<std::string>& those = machine.nics[each].networks;
          return std::find(those.begin(), those.end(), network) != those.end();
        })) {
      return network;
    }
  }
  return {};
}

/// Sets UCX's devices only if all NICs are interchangeable: NICs of one network reach the same
/// hosts.
void tell_ucx(const Topology& machine, const JobPlace& job, Plan& made) {
  const Numbers all = candidates(machine, job);
  if (job.interfaces_set) {
    made.why_devices = "UCX_NET_DEVICES is set";
  } else if (all.size() < 2) {
    made.why_devices = "there is no choice";
  } else if (machine.nodes.size() < 2) {
    made.why_devices = kOneNode;
  } else if (job.beyond_tcp) {
    made.why_devices = "UCX_TLS is set, and UCX itself looks for nearby RDMA devices";
  } else if (const std::string network = common_network(machine, all); network.empty()) {
    made.why_devices =
        fmt::format("{} have no known network in common, and may lead to different hosts",
                    names_of(machine, all));
  } else {
    made.devices = made.nic;
    made.nic_is_certain = true;
    made.why_devices = fmt::format("{} are all in {}", names_of(machine, all), network);
  }
}

/// Returns the node that has most of these cores; if several do, the first one.
std::optional<std::uint32_t> node_of(const Topology& machine, const Cores& cores) {
  std::optional<std::uint32_t> best;
  std::size_t most = 0;
  for (const Node& node : machine.nodes) {
    const std::size_t here = common(node.cores, cores).size();
    if (here > most) {
      most = here;
      best = node.number;
    }
  }
  return best;
}

void bind_engine(const Topology& machine, const JobPlace& job, Plan& made) {
  if (machine.nodes.size() < 2) {
    made.why = kOneNode;
    return;
  }
  if (made.nic.empty()) {
    made.why = made.why_nic;
    return;
  }
  if (!made.nic_is_certain) {
    made.why = fmt::format(
        "UCX may use several NICs near different cores: UCX_NET_DEVICES={} would "
        "choose this rank's",
        made.nic);
    return;
  }
  const auto nic = std::find_if(machine.nics.begin(), machine.nics.end(),
                                [&](const Device& each) { return each.name == made.nic; });
  const Cores cores = common(nic->near, machine.allowed);
  const std::string where = fmt::format("{} is near cores {}", nic->name, to_text(nic->near));
  // Ranks without cores of their own share all cores.
  const std::size_t fewest = machine.allowed == machine.cores
                                 ? std::max<std::size_t>(kFewestCores, job.local_size)
                                 : kFewestCores;
  if (cores.empty()) {
    made.why =
        fmt::format("{}, but this process may run only on {}", where, to_text(machine.allowed));
  } else if (cores == machine.allowed) {
    made.why = fmt::format("{}, and all cores that this process may use are among them", where);
  } else if (cores.size() < kFewestCores) {
    made.why = fmt::format("{}, of which this process may use {}: too few to bind to", where,
                           cores.size());
  } else if (cores.size() < fewest) {
    made.why = fmt::format("{}, of which this process may use {}: too few for {} ranks", where,
                           cores.size(), job.local_size);
  } else {
    made.engine = cores;
    made.node = node_of(machine, cores);
    made.why = where;
  }
}

}  // namespace

const char* to_string(Nearness nearness) {
  switch (nearness) {
    case Nearness::kSwitch:
      return "below one PCIe switch";
    case Nearness::kHostBridge:
      return "below one host bridge";
    case Nearness::kCores:
      return "near the same cores";
    case Nearness::kMachine:
      return "across the machine";
  }
  return "";
}

Nearness nearness(const Device& a, const Device& b) {
  const auto parted =
      std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end());
  const auto shared = parted.first - a.bridges.begin();
  if (shared > 1) {
    return Nearness::kSwitch;
  }
  if (shared == 1) {
    return Nearness::kHostBridge;
  }
  return a.near == b.near ? Nearness::kCores : Nearness::kMachine;
}

std::vector<std::size_t> nearest(const Topology& machine, const std::vector<std::size_t>& nics,
                                 const Device& gpu) {
  Nearness best = Nearness::kMachine;
  for (const std::size_t nic : nics) {
    best = std::min(best, nearness(machine.nics[nic], gpu));
  }
  Numbers found;
  for (const std::size_t nic : nics) {
    if (nearness(machine.nics[nic], gpu) == best) {
      found.push_back(nic);
    }
  }
  return found;
}

Plan plan(const Topology& machine, const JobPlace& job) {
  Plan made{.compute = machine.allowed};
  if (machine.cores.empty()) {
    made.why = made.why_nic = made.why_devices = machine.source;
    return made;
  }
  choose_nic(machine, job, made);
  tell_ucx(machine, job, made);
  bind_engine(machine, job, made);
  return made;
}

}  // namespace gtopk::topology
