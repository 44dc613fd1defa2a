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
#include "gtopk_version.hpp"
#include "tools/programs/info/advice.hpp"
#include "tools/programs/info/machine.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs::info {
namespace {

std::vector<std::string> names_of(const std::vector<Choice>& choices) {
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const Choice& each : choices) names.emplace_back(each.name);
  return names;
}

std::string gibibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30U));
}

std::string number(std::uint64_t limit) {
  return limit == std::numeric_limits<std::uint64_t>::max() ? "unlimited" : std::to_string(limit);
}

std::string listed(const std::vector<std::string>& names) {
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::string line_of(const Interface& interface) {
  const std::string speed = interface.megabits ? fmt::format("{} Mbit/s", *interface.megabits) : "";
  return fmt::format("  {:<16} {:<5} {:>14}  {}", interface.name, interface.up ? "up" : "down",
                     interface.loopback ? "loopback" : speed, fmt::join(interface.addresses, ", "));
}

std::vector<std::string> text_of(const Machine& machine, const std::string& ucx,
                                 const std::vector<std::string>& advices) {
  std::vector<std::string> lines = {
      fmt::format("gtopk {}", kVersion),
      fmt::format("  algorithms       {}", fmt::join(names_of(algorithms()), ", ")),
      fmt::format("  selectors        {}", fmt::join(names_of(selectors()), ", ")),
      fmt::format("  wires            {}", fmt::join(names_of(wires()), ", ")),
      ucx,
      fmt::format("host {}, {}", machine.name, machine.kernel),
      fmt::format("  cores            {}, {} of them for this process", machine.cores,
                  machine.cores_allowed),
      fmt::format("  memory           {}, /dev/shm {}", gibibytes(machine.memory),
                  gibibytes(machine.shared_memory)),
      fmt::format("  open files       {}, at most {}", number(machine.open_files.soft),
                  number(machine.open_files.hard)),
      fmt::format("  locked memory    {} bytes", number(machine.locked_memory.hard)),
      fmt::format("  TCP              {}", machine.congestion_control),
      fmt::format("  RDMA devices     {}", listed(machine.rdma_devices)),
      fmt::format("  GPUs             {}", listed(machine.gpus)),
      "interfaces"};
  for (const Interface& each : machine.interfaces) lines.push_back(line_of(each));
  lines.emplace_back(machine.environment.empty() ? "environment: nothing that matters here"
                                                 : "environment");
  for (const auto& [name, value] : machine.environment) {
    lines.push_back(fmt::format("  {}={}", name, value));
  }
  lines.emplace_back(advices.empty() ? "advice: none" : "advice");
  for (const std::string& each : advices) lines.push_back("  - " + each);
  return lines;
}

nlohmann::json limit_json(const Limit& limit) {
  const auto value = [](std::uint64_t each) {
    return each == std::numeric_limits<std::uint64_t>::max() ? nlohmann::json()
                                                             : nlohmann::json(each);
  };
  return {{"soft", value(limit.soft)}, {"hard", value(limit.hard)}};
}

nlohmann::json json_of(const Machine& machine, const std::string& ucx,
                       const std::vector<std::string>& advices) {
  nlohmann::json interfaces = nlohmann::json::array();
  for (const Interface& each : machine.interfaces) {
    interfaces.push_back(
        {{"name", each.name},
         {"up", each.up},
         {"loopback", each.loopback},
         {"megabits_per_second", each.megabits ? nlohmann::json(*each.megabits) : nlohmann::json()},
         {"addresses", each.addresses}});
  }
  return {{"program", "gtopk-info"},
          {"version", kVersion},
          {"algorithms", names_of(algorithms())},
          {"selectors", names_of(selectors())},
          {"wires", names_of(wires())},
          {"ucx", ucx},
          {"ucx_libraries", machine.ucx_libraries},
          {"host", machine.name},
          {"kernel", machine.kernel},
          {"cores", machine.cores},
          {"cores_allowed", machine.cores_allowed},
          {"memory_bytes", machine.memory},
          {"shared_memory_bytes", machine.shared_memory},
          {"open_files", limit_json(machine.open_files)},
          {"locked_memory_bytes", limit_json(machine.locked_memory)},
          {"congestion_control", machine.congestion_control},
          {"rdma_devices", machine.rdma_devices},
          {"gpus", machine.gpus},
          {"interfaces", std::move(interfaces)},
          {"environment", machine.environment},
          {"advice", advices}};
}

int run(bool json) {
  const auto process = Process::start();
  const Machine machine = this_machine();
  const std::vector<std::string> advices = advice(machine);
  if (json) {
    static_cast<void>(print_line(json_of(machine, process->transport(), advices).dump(2)));
    return kFine;
  }
  for (const std::string& line : text_of(machine, process->transport(), advices)) {
    if (!print_line(line)) return kFine;
  }
  return kFine;
}

}  // namespace
}  // namespace gtopk::programs::info

int main(int argc, char** argv) {
  CLI::App app("Says what gtopk finds on this machine, with advice.", "gtopk-info");
  bool json = false;
  app.add_flag("--json", json, "all of it as JSON");
  return gtopk::programs::run_program(app, argc, argv,
                                      [&] { return gtopk::programs::info::run(json); });
}
