// gtopk-info: this library, the UCX that it loads, this machine, and advice on what is likely to
// make a job slow or fail.
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "gtopk/communicator.hpp"
#include "gtopk/types.hpp"
#include "gtopk_revision.hpp"
#include "gtopk_version.hpp"
#include "src/transport/topology/job_place.hpp"
#include "src/transport/topology/probe.hpp"
#include "tools/programs/info/advice.hpp"
#include "tools/programs/info/doctor.hpp"
#include "tools/programs/info/gpu_test.hpp"
#include "tools/programs/info/layout.hpp"
#include "tools/programs/info/machine.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs::info {
namespace {

std::vector<std::string> names_of(const std::vector<Choice>& choices) {
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const Choice& each : choices) {
    names.emplace_back(each.name);
  }
  return names;
}

std::string number(std::uint64_t limit) {
  return limit == std::numeric_limits<std::uint64_t>::max() ? "unlimited" : std::to_string(limit);
}

std::string listed(const std::vector<std::string>& names) {
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// Returns " (0123456ab)"; empty if it was not built from a git checkout.
std::string revision() {
  return *kRevision == '\0' ? std::string() : fmt::format(" ({})", kRevision);
}

std::string line_of(const Interface& interface) {
  const std::string speed = interface.megabits ? fmt::format("{} Mbit/s", *interface.megabits) : "";
  const std::string kind = interface.loopback ? "loopback" : interface.tunnel;
  return fmt::format("  {:<16} {:<5} {:>14}  MTU {:<5}  {}", interface.name,
                     interface.up ? "up" : "down", kind.empty() ? speed : kind, interface.mtu,
                     fmt::join(interface.addresses, ", "));
}

/// The facts that the process reports about itself.
struct Said {
  std::string ucx;
  std::string binding;
};

std::vector<std::string> text_of(const Machine& machine, const Said& process,
                                 const std::vector<std::string>& advices) {
  std::vector<std::string> lines = {
      fmt::format("gtopk {}{}", kVersion, revision()),
      fmt::format("  algorithms       {}", fmt::join(names_of(algorithms()), ", ")),
      fmt::format("  selectors        {}", fmt::join(names_of(selectors()), ", ")),
      fmt::format("  wires            {}", fmt::join(names_of(wires()), ", ")),
      process.ucx,
      fmt::format("host {}, {}", machine.name, machine.kernel),
      fmt::format("  cores            {}, {} of them for this process", machine.cores,
                  machine.cores_allowed),
      fmt::format("  memory           {}, /dev/shm {}", gibibytes(machine.memory),
                  gibibytes(machine.shared_memory)),
      fmt::format("  open files       {}, at most {}", number(machine.open_files.soft),
                  number(machine.open_files.hard)),
      fmt::format("  locked memory    {} bytes", number(machine.locked_memory.hard)),
      fmt::format("  TCP              {}, buffers of at most {} to receive, {} to send",
                  machine.tcp.congestion_control, mebibytes(machine.tcp.receive_buffer),
                  mebibytes(machine.tcp.send_buffer)),
      fmt::format("  RDMA devices     {}", listed(machine.rdma_devices)),
      fmt::format("  GPUs             {}", listed(machine.gpus)),
      "interfaces"};
  for (const Interface& each : machine.interfaces) {
    lines.push_back(line_of(each));
  }
  for (const std::string& line : layout_text(machine.topology)) {
    lines.push_back(line);
  }
  lines.push_back(fmt::format("plan of local rank {} of {}", machine.place.local_rank,
                              machine.place.local_size));
  for (const std::string& line : layout_text(machine.plan, process.binding)) {
    lines.push_back(line);
  }
  lines.emplace_back(machine.environment.empty() ? "environment: nothing that matters here"
                                                 : "environment");
  for (const auto& [name, value] : machine.environment) {
    lines.push_back(fmt::format("  {}={}", name, value));
  }
  lines.emplace_back(advices.empty() ? "advice: none" : "advice");
  for (const std::string& each : advices) {
    lines.push_back("  - " + each);
  }
  return lines;
}

nlohmann::json limit_json(const Limit& limit) {
  const auto value = [](std::uint64_t each) {
    return each == std::numeric_limits<std::uint64_t>::max() ? nlohmann::json()
                                                             : nlohmann::json(each);
  };
  return {{"soft", value(limit.soft)}, {"hard", value(limit.hard)}};
}

nlohmann::json json_of(const Machine& machine, const Said& process,
                       const std::vector<std::string>& advices) {
  nlohmann::json interfaces = nlohmann::json::array();
  for (const Interface& each : machine.interfaces) {
    interfaces.push_back(
        {{"name", each.name},
         {"up", each.up},
         {"loopback", each.loopback},
         {"mtu", each.mtu},
         {"tunnel", each.tunnel},
         {"megabits_per_second", each.megabits ? nlohmann::json(*each.megabits) : nlohmann::json()},
         {"addresses", each.addresses}});
  }
  return {{"program", "gtopk-info"},
          {"version", kVersion},
          {"revision", kRevision},
          {"algorithms", names_of(algorithms())},
          {"selectors", names_of(selectors())},
          {"wires", names_of(wires())},
          {"ucx", process.ucx},
          {"ucx_libraries", machine.ucx_libraries},
          {"host", machine.name},
          {"kernel", machine.kernel},
          {"cores", machine.cores},
          {"cores_allowed", machine.cores_allowed},
          {"memory_bytes", machine.memory},
          {"shared_memory_bytes", machine.shared_memory},
          {"open_files", limit_json(machine.open_files)},
          {"locked_memory_bytes", limit_json(machine.locked_memory)},
          {"congestion_control", machine.tcp.congestion_control},
          {"tcp_receive_buffer_bytes", machine.tcp.receive_buffer},
          {"tcp_send_buffer_bytes", machine.tcp.send_buffer},
          {"rdma_devices", machine.rdma_devices},
          {"gpus", machine.gpus},
          {"interfaces", std::move(interfaces)},
          {"topology", layout_json(machine.topology)},
          {"plan", layout_json(machine.plan, process.binding)},
          {"environment", machine.environment},
          {"advice", advices}};
}

struct Options {
  bool json = false;
  bool doctor = false;
  bool gpu = false;
  std::string topology{};  ///< an hwloc file
  std::uint32_t local_ranks = 0;
  JobOptions job{};
};

void add_options(CLI::App& app, Options& options) {
  auto* const json = app.add_flag("--json", options.json, "print everything as JSON");
  auto* const doctor = app.add_flag(
      "--doctor", options.doctor,
      "run by all ranks of a job: tests every two hosts by a pair of ranks, no host in two "
      "tests at once; rank 0 prints transports, latencies and bandwidths");
  auto* const topology =
      app.add_option("--topology", options.topology,
                     "an hwloc file (`lstopo FILE.xml`): print the plan for that machine")
          ->excludes(doctor);
  app.add_flag("--gpu", options.gpu,
               "tests the kernels of every element type on every GPU, bit for bit against the CPU, "
               "in a child process, which may be silent for --timeout")
      ->excludes(json)
      ->excludes(doctor)
      ->excludes(topology);
  app.add_option("--local-ranks", options.local_ranks,
                 "ranks on the machine of --topology; 0: one per GPU")
      ->check(CLI::Range(0U, 1024U))
      ->capture_default_str();
  add_job_options(app, options.job);
  app.footer(
      "Without options: this process, this machine, and advice.\n\nExit code: 0; 1 for an error, "
      "with --doctor also if a rank has not come or a link\ndoes not work, with --gpu also if "
      "anything is not as on the CPU; 2 for invalid\narguments.\n");
}

int print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (!print_line(line)) {
      break;
    }
  }
  return kFine;
}

int run(const Options& options) {
  if (options.doctor) {
    return doctor(options.job, options.json);
  }
  if (options.gpu) {
    return test_gpus(timeout_of(options.job));
  }
  if (!options.topology.empty()) {
    return print(planned_elsewhere(topology::probe_file(options.topology),
                                   topology::job_place(topology::variable_here),
                                   options.local_ranks, options.json));
  }
  const auto process = Process::start();
  const Machine machine = this_machine();
  const std::vector<std::string> advices = advice(machine);
  const Said said{process->transport(), process->placement()};
  if (options.json) {
    return print({json_of(machine, said, advices).dump(2)});
  }
  return print(text_of(machine, said, advices));
}

}  // namespace
}  // namespace gtopk::programs::info

int main(int argc, char** argv) {
  CLI::App app("Reports what gtopk finds on this machine, with advice.", "gtopk-info");
  gtopk::programs::info::Options options;
  gtopk::programs::info::add_options(app, options);
  return gtopk::programs::run_program(app, argc, argv,
                                      [&] { return gtopk::programs::info::run(options); });
}
