#include "tools/programs/info/layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/transport/topology/placement.hpp"

namespace gtopk::programs::info {
namespace {

using topology::Device;
using topology::Plan;
using topology::to_text;
using topology::Topology;

constexpr auto kLine = "  {:<16} {}";

std::vector<std::size_t> nics_of(const Topology& machine, const Device& gpu) {
  std::vector<std::size_t> all(machine.nics.size());
  std::iota(all.begin(), all.end(), 0U);
  return all.empty() ? all : topology::nearest(machine, all, gpu);
}

std::vector<std::string> names_of(const Topology& machine, const std::vector<std::size_t>& nics) {
  std::vector<std::string> names;
  names.reserve(nics.size());
  for (const std::size_t nic : nics) {
    names.push_back(machine.nics[nic].name);
  }
  return names;
}

std::string where(const Device& device) {
  return fmt::format("{}, near cores {}", device.bus, to_text(device.near));
}

}  // namespace

std::string gibibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30U));
}

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20U));
}

std::vector<std::string> layout_text(const Topology& machine) {
  std::vector<std::string> lines = {"topology: " + machine.source};
  for (const auto& each : machine.packages) {
    lines.push_back(fmt::format(fmt::runtime(kLine), fmt::format("package {}", each.number),
                                "cores " + to_text(each.cores)));
  }
  for (const auto& each : machine.nodes) {
    lines.push_back(
        fmt::format(fmt::runtime(kLine), fmt::format("node {}", each.number),
                    fmt::format("cores {}, {}", to_text(each.cores), gibibytes(each.memory))));
  }
  for (const Device& each : machine.nics) {
    lines.push_back(fmt::format(
        fmt::runtime(kLine), "NIC " + each.name,
        fmt::format("{}{}{}", where(each), each.rdma.empty() ? "" : ", RDMA device " + each.rdma,
                    each.up ? "" : ", down")));
  }
  for (const Device& each : machine.gpus) {
    const auto nics = nics_of(machine, each);
    std::string text = where(each);
    if (!nics.empty()) {
      text += fmt::format("; {} {}", fmt::join(names_of(machine, nics), ", "),
                          to_string(nearness(machine.nics[nics.front()], each)));
    }
    lines.push_back(fmt::format(fmt::runtime(kLine), each.name, text));
  }
  return lines;
}

std::vector<std::string> layout_text(const Plan& plan, const std::string& binding) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const std::string& text) {
    lines.push_back(fmt::format(fmt::runtime(kLine), what, text));
  };
  add("engine thread", binding);
  add("compute thread", plan.compute.empty()
                            ? "where the process is"
                            : "cores " + to_text(plan.compute) + ", all that this process may use");
  add("NIC", plan.nic.empty() ? "none: " + plan.why_nic : plan.nic + ": " + plan.why_nic);
  add("UCX", plan.devices.empty()
                 ? "is not told: " + plan.why_devices
                 : fmt::format("UCX_NET_DEVICES={}: {}", plan.devices, plan.why_devices));
  if (!plan.gpu.empty()) {
    add("GPU", plan.gpu);
  }
  return lines;
}

nlohmann::json layout_json(const Topology& machine) {
  using nlohmann::json;
  json packages = json::array();
  for (const auto& each : machine.packages) {
    packages.push_back({{"number", each.number}, {"cores", each.cores}});
  }
  json nodes = json::array();
  for (const auto& each : machine.nodes) {
    nodes.push_back(
        {{"number", each.number}, {"memory_bytes", each.memory}, {"cores", each.cores}});
  }
  json nics = json::array();
  for (const Device& each : machine.nics) {
    nics.push_back({{"name", each.name},
                    {"rdma", each.rdma},
                    {"bus", each.bus},
                    {"cores", each.near},
                    {"up", each.up}});
  }
  json gpus = json::array();
  for (const Device& each : machine.gpus) {
    const auto near = nics_of(machine, each);
    gpus.push_back(
        {{"name", each.name},
         {"bus", each.bus},
         {"cores", each.near},
         {"nics", names_of(machine, near)},
         {"nearness", near.empty() ? "" : to_string(nearness(machine.nics[near.front()], each))}});
  }
  return {{"source", machine.source},         {"cores", machine.cores},
          {"cores_allowed", machine.allowed}, {"packages", std::move(packages)},
          {"nodes", std::move(nodes)},        {"nics", std::move(nics)},
          {"gpus", std::move(gpus)}};
}

nlohmann::json layout_json(const Plan& plan, const std::string& binding) {
  return {{"engine_cores", plan.engine},
          {"engine_why", plan.why},
          {"binding", binding},
          {"compute_cores", plan.compute},
          {"node", plan.node ? nlohmann::json(*plan.node) : nlohmann::json()},
          {"nic", plan.nic},
          {"rdma", plan.rdma},
          {"nic_why", plan.why_nic},
          {"nic_is_certain", plan.nic_is_certain},
          {"ucx_net_devices", plan.devices},
          {"ucx_net_devices_why", plan.why_devices},
          {"gpu", plan.gpu}};
}

std::vector<std::string> planned_elsewhere(const Topology& machine, topology::JobPlace job,
                                           std::uint32_t ranks, bool json) {
  if (ranks == 0) {
    ranks = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(machine.gpus.size()));
  }
  job.local_size = ranks;
  std::vector<std::string> lines = layout_text(machine);
  nlohmann::json plans = nlohmann::json::array();
  for (job.local_rank = 0; job.local_rank < ranks; ++job.local_rank) {
    const Plan plan = topology::plan(machine, job);
    const std::string binding = topology::placement({}, plan).text;
    plans.push_back(layout_json(plan, binding));
    lines.push_back(fmt::format("plan of local rank {} of {}", job.local_rank, ranks));
    for (std::string& line : layout_text(plan, binding)) {
      lines.push_back(std::move(line));
    }
  }
  if (!json) {
    return lines;
  }
  return {nlohmann::json{{"program", "gtopk-info --topology"},
                         {"topology", layout_json(machine)},
                         {"plans", std::move(plans)}}
              .dump(2)};
}

}  // namespace gtopk::programs::info
