#include "tools/programs/info/advice.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "src/transport/ucx/port_range.hpp"

namespace gtopk::programs::info {
namespace {

using Sentences = std::vector<std::string>;

/// Returns a UCX setting as gtopk reads it; gtopk's own variable takes precedence.
std::optional<std::string> setting(const Machine& machine, const std::string& name) {
  for (const char* const prefix : {"GTOPK_UCX_", "UCX_"}) {
    const auto found = machine.environment.find(prefix + name);
    if (found != machine.environment.end()) {
      return found->second;
    }
  }
  return std::nullopt;
}

void about_interfaces(const Machine& machine, Sentences& said) {
  Sentences usable;
  for (const Interface& each : machine.interfaces) {
    if (each.up && !each.loopback && !each.addresses.empty()) {
      usable.push_back(each.name);
    }
  }
  const auto chosen = setting(machine, "NET_DEVICES");
  if (!chosen && usable.size() > 1) {
    said.push_back(fmt::format(
        "{} interfaces are up ({}), and UCX considers all of them: UCX_NET_DEVICES={} names the "
        "one that joins the hosts",
        usable.size(), fmt::join(usable, ", "), usable.front()));
  }
  if (!chosen || *chosen == "all") {
    return;
  }
  for (const std::string& device : CLI::detail::split(*chosen, ',')) {
    const std::string name = device.substr(0, device.find(':'));  // a port may follow
    const auto is_it = [&](const Interface& each) { return each.name == name; };
    const auto interface =
        std::find_if(machine.interfaces.begin(), machine.interfaces.end(), is_it);
    const bool is_rdma = std::find(machine.rdma_devices.begin(), machine.rdma_devices.end(),
                                   name) != machine.rdma_devices.end();
    if (interface == machine.interfaces.end() && !is_rdma) {
      said.push_back(fmt::format("UCX_NET_DEVICES names {}, which does not exist here", device));
    } else if (interface != machine.interfaces.end() && !interface->up) {
      said.push_back(fmt::format("UCX_NET_DEVICES names {}, which is down", device));
    }
  }
}

void about_nics(const Machine& machine, Sentences& said) {
  const auto chosen = setting(machine, "NET_DEVICES");
  for (const Interface& each : machine.interfaces) {
    if (!each.card || !each.up || !each.addresses.empty()) {
      continue;
    }
    said.push_back(fmt::format(
        "{} is up and has no address, without which UCX cannot use it over TCP: give it one, or "
        "leave it alone if it is a bond's or a bridge's",
        each.name));
  }
  const topology::Topology& topology = machine.topology;
  if (topology.cores.empty()) {
    said.push_back(fmt::format(
        "it is not known which cores are near the NIC, so the engine's thread is not bound: {}",
        topology.source));
    return;
  }
  if (topology.nodes.size() < 2 || machine.plan.nic.empty()) {
    return;
  }
  const auto nic =
      std::find_if(topology.nics.begin(), topology.nics.end(),
                   [&](const topology::Device& each) { return each.name == machine.plan.nic; });
  if (!chosen && !machine.plan.nic_is_certain) {
    said.push_back(fmt::format("this rank's NIC would be {} ({}): UCX_NET_DEVICES={} chooses it",
                               nic->name, machine.plan.why_nic, nic->name));
  } else if (topology::common(nic->near, topology.allowed).empty()) {
    said.push_back(fmt::format(
        "{} is near cores {}, and this process may run on {} alone: messages cross the machine",
        nic->name, topology::to_text(nic->near), topology::to_text(topology.allowed)));
  }
}

void about_transports(const Machine& machine, Sentences& said) {
  const auto chosen = setting(machine, "TLS");
  if (chosen && !chosen->starts_with('^')) {
    constexpr std::array kShared = {"all", "sm", "shm", "mm", "posix", "sysv"};
    const auto names = CLI::detail::split(*chosen, ',');
    const bool shared = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::find(kShared.begin(), kShared.end(), name) != kShared.end();
    });
    if (!shared) {
      said.push_back(fmt::format(
          "UCX_TLS={} has no shared memory: ranks of one host will not use it", *chosen));
    }
  }
  if (!machine.rdma_devices.empty() && !machine.ucx_has_rdma) {
    said.push_back(fmt::format(
        "there are RDMA devices ({}), and this UCX has no transport for them: build against a UCX "
        "of your own (-DGTOPK_UCX=system)",
        fmt::join(machine.rdma_devices, ", ")));
  }
  if (machine.ucx_libraries.size() > 1) {
    said.push_back(fmt::format("two UCX libraries are in one process, which will crash: {}",
                               fmt::join(machine.ucx_libraries, ", ")));
  }
}

void about_limits(const Machine& machine, Sentences& said) {
  constexpr std::uint64_t kFewFiles = 1024;
  constexpr std::uint64_t kLittleShared = 64ULL << 20U;  // the usual default in containers
  if (machine.open_files.hard < kFewFiles) {
    said.push_back(fmt::format(
        "at most {} open files: every rank that this one talks to takes one or more (ulimit -n)",
        machine.open_files.hard));
  }
  if (machine.shared_memory <= kLittleShared) {
    said.push_back(
        fmt::format("/dev/shm holds {} MiB, too little for the ranks of a host, which share System "
                    "V's memory instead: a container gets more with --shm-size or --ipc=host",
                    machine.shared_memory >> 20U));
  }
  if (!machine.rdma_devices.empty() && machine.locked_memory.hard != UINT64_MAX) {
    said.push_back(
        "locked memory is limited, and RDMA registers what it sends: ulimit -l unlimited");
  }
  if (machine.cores_allowed == 1 && machine.cores > 1) {
    said.push_back(fmt::format(
        "this process may run on 1 of {} cores: its engine thread has to share it", machine.cores));
  }
}

void about_tcp(const Machine& machine, Sentences& said) {
  if (machine.tcp.congestion_control == "bbr") {
    said.emplace_back(
        "TCP's congestion control is bbr, under which single exchanges between near hosts take up "
        "to twice as long: there, sysctl net.ipv4.tcp_congestion_control=cubic. Between sites it "
        "is the better one: --doctor measures which links are long");
  }
}

/// Reports tunnels whose packets do not fit into packets of the network below.
void about_tunnels(const Machine& machine, Sentences& said) {
  constexpr std::uint32_t kHeaders = 60;  // WireGuard's minimum, over IPv4
  constexpr std::uint32_t kUsual = 80;    // WireGuard's over IPv6
  std::uint32_t below = 0;
  for (const Interface& each : machine.interfaces) {
    below = each.up && !each.loopback && each.tunnel.empty() ? std::max(below, each.mtu) : below;
  }
  for (const Interface& each : machine.interfaces) {
    if (each.up && each.tunnel == "WireGuard" && below > kUsual && each.mtu + kHeaders > below) {
      said.push_back(fmt::format(
          "{} is a tunnel ({}) with an MTU of {}, whose packets do not fit into those of {} bytes "
          "of the network below: set an MTU of at most {}",
          each.name, each.tunnel, each.mtu, below, below - kUsual));
    }
  }
}

/// Reports a range of ports with fewer ports, or fewer free ports, than the host's ranks need.
void about_ports(const Machine& machine, Sentences& said) {
  const auto found = machine.environment.find("GTOPK_PORTS");
  if (found == machine.environment.end()) {
    return;
  }
  const std::optional<transport::PortRange> ports = transport::port_range(found->second);
  if (!ports) {
    said.push_back(fmt::format(
        "GTOPK_PORTS is '{}', and ranks will not start: expected a range of TCP ports of 1 to "
        "65535, like 40000-40015",
        found->second));
  } else if (ports->last - ports->first + 1U < machine.place.local_size) {
    said.push_back(fmt::format(
        "GTOPK_PORTS={} has {} port{}, and the {} ranks of this host need one each: widen it",
        found->second, ports->last - ports->first + 1, ports->last == ports->first ? "" : "s",
        machine.place.local_size));
  } else if (machine.free_ports && *machine.free_ports < machine.place.local_size) {
    said.push_back(fmt::format(
        "of the ports of GTOPK_PORTS={} only {} {} free now, and the {} ranks of this host need "
        "one each: widen it, or end what holds the others (ss -tlnp)",
        found->second, *machine.free_ports, *machine.free_ports == 1 ? "is" : "are",
        machine.place.local_size));
  }
}

void about_variables(const Machine& machine, Sentences& said) {
  constexpr std::array kKnown = {"GTOPK_LOG_LEVEL",
                                 "GTOPK_HOST",
                                 "GTOPK_BIND",
                                 "GTOPK_CONNECTIONS",
                                 "GTOPK_PORTS",
                                 "GTOPK_SEND_WINDOW",
                                 "GTOPK_DENSE",
                                 "GTOPK_FLIGHT_RECORDER",
                                 "GTOPK_FLIGHT_RECORDER_DIR",
                                 "GTOPK_FLIGHT_RECORDER_SIGNAL",
                                 "GTOPK_SECRET",
                                 "GTOPK_SECRET_FILE",
                                 "GTOPK_PMIX_LIBRARY",
                                 "GTOPK_CUDA_DRIVER",
                                 "GTOPK_CUDA_KERNELS",
                                 "GTOPK_CUDA_SELF_TEST",
                                 "GTOPK_DEVICE_POINTERS",
                                 "GTOPK_BLOCKING_WAIT"};
  for (const auto& [name, value] : machine.environment) {
    if (!name.starts_with("GTOPK_") || name.starts_with("GTOPK_UCX_")) {
      continue;
    }
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) {
      continue;
    }
    said.push_back(fmt::format("{} is set, and gtopk reads no such variable; it reads {}", name,
                               fmt::join(kKnown, ", ")));
  }
}

}  // namespace

Sentences advice(const Machine& machine) {
  Sentences said;
  about_interfaces(machine, said);
  about_nics(machine, said);
  about_transports(machine, said);
  about_limits(machine, said);
  about_tcp(machine, said);
  about_tunnels(machine, said);
  about_ports(machine, said);
  about_variables(machine, said);
  return said;
}

}  // namespace gtopk::programs::info
