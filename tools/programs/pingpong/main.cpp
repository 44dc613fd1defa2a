// gtopk-pingpong: latency and bandwidth between two ranks, of the transport alone and through a
// group's calls, with no Python and no torch.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "gtopk_version.hpp"
#include "tools/programs/gpu.hpp"
#include "tools/programs/pingpong/measure.hpp"
#include "tools/programs/pingpong/options.hpp"
#include "tools/programs/pingpong/report.hpp"
#include "tools/programs/pingpong/wire.hpp"
#include "tools/programs/placement.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs::pingpong {
namespace {

/// Returns the other rank's answer to the same question.
std::string exchanged(const Ends& ends, const char* what, const std::string& mine) {
  const auto key = [&](std::uint32_t rank) { return fmt::format("{} of rank {}", what, rank); };
  ends.store->set(key(ends.environment.rank), mine);
  return ends.store->get(key(1 - ends.environment.rank), ends.timeout);
}

/// The data that both ranks need before they measure.
struct Both {
  std::string peer_machine{};
  std::vector<std::string> placements{};  ///< for --topology
};

Both told(const Ends& ends, const Plan& plan) {
  Both both{.peer_machine = exchanged(ends, "machine", machine_name())};
  if (plan.topology) {
    const std::string mine = placement_of(ends.environment.rank);
    const std::string theirs = exchanged(ends, "place", mine);
    both.placements = {ends.environment.rank == 0 ? mine : theirs,
                       ends.environment.rank == 0 ? theirs : mine};
  }
  return both;
}

/// Gives both ranks the measuring rank's plan.
Plan agreed_plan(const Ends& ends, const Plan& plan, bool measures) {
  if (measures) {
    ends.store->set("plan", to_text(plan));
  }
  const auto told = ends.store->find("plan", ends.timeout);
  if (!told) {
    throw std::runtime_error(fmt::format("no other rank has come to port {} within {:g} s",
                                         ends.environment.port,
                                         std::chrono::duration<double>(ends.timeout).count()));
  }
  return plan_from(*told);
}

/// Says how a GPU's memory gets to the network: "; GPU 0, ...: through pinned memory".
std::string way_of(const Wire& wire, const Plan& plan, const Gpu* gpu) {
  if (gpu == nullptr) {
    return {};
  }
  const bool in_place = wire.takes(gpu->memory().kind, plan.end);
  return fmt::format("; {}: {}", gpu->name(),
                     !in_place ? "through pinned memory"
                     : wire.takes(gpu->memory().kind, plan.begin)
                         ? "handed to UCX"
                         : fmt::format("handed to UCX if longer than {} bytes", kShortMessage));
}

std::vector<std::string> provenance(const Both& both, const Plan& plan) {
  std::string what = "half of a round trip";
  if (plan.mode == "exchange") {
    what = "both ways at once";
  }
  if (plan.mode == "bw") {
    what = fmt::format("{} messages one way, then 1 byte back", plan.window);
  }
  std::vector<std::string> lines = {
      fmt::format("gtopk {}, gtopk-pingpong", kVersion),
      fmt::format("from {} to {}; {} cores here", machine_name(), both.peer_machine,
                  sysconf(_SC_NPROCESSORS_ONLN)),
      fmt::format("{}: {}; times of one message one way, bw of p50; {} rounds to warm up; "
                  "GB = 1e9 bytes",
                  plan.mode, what, plan.warm_up)};
  lines.insert(lines.end(), both.placements.begin(), both.placements.end());
  return lines;
}

/// Returns this rank's GPU, for --memory cuda. Throws on both ranks if one of them has none.
std::unique_ptr<Gpu> gpu_of(const Ends& ends, const Plan& plan) {
  if (plan.memory == "host") {
    return nullptr;
  }
  std::unique_ptr<Gpu> gpu;
  std::string why_not;
  try {
    gpu = std::make_unique<Gpu>(ends.environment.local_rank.value_or(ends.environment.rank));
  } catch (const std::runtime_error& error) {
    why_not = error.what();
  }
  const std::string theirs = exchanged(ends, "GPU", why_not);
  if (!why_not.empty()) {
    throw std::runtime_error(why_not);
  }
  if (!theirs.empty()) {
    throw std::runtime_error(fmt::format("rank {}: {}", 1 - ends.environment.rank, theirs));
  }
  return gpu;
}

/// Runs all sizes over one layer. Returns false once stdout is closed.
bool play(Wire& wire, const std::string& layer, const Plan& plan, Report* report, const Gpu* gpu,
          std::uint64_t& wrong) {
  Player player(wire, plan, report != nullptr, gpu);
  bool read = report == nullptr || report->line(fmt::format("{}: {}{}", layer, wire.describe(),
                                                            way_of(wire, plan, gpu)));
  for (const std::uint64_t bytes : sizes_between(plan.begin, plan.end, plan.factor)) {
    if (!player.agree(read)) {
      return false;
    }
    player.reserve(bytes);
    const std::uint64_t wrong_here = plan.check ? player.check() : 0;
    wrong += wrong_here;
    const std::vector<double> seconds = player.measure();
    if (report != nullptr) {
      read = report->add({layer, bytes, seconds, wrong_here});
    }
  }
  return player.agree(read);
}

int run(const Options& options) {
  check_plan(options.plan);
  const Role role = role_of(options);
  const JsonFile json(role.measures ? options.json : std::string());
  const std::chrono::nanoseconds timeout = timeout_of(options.job);
  const Ends ends{role.environment, join(role.environment, timeout), timeout};
  const Plan plan = agreed_plan(ends, options.plan, role.measures);
  Report report(plan);
  const std::unique_ptr<Gpu> gpu = gpu_of(ends, plan);
  const Both both = told(ends, plan);
  if (role.measures) {
    static_cast<void>(report.begin(provenance(both, plan)));
  }
  std::uint64_t wrong = 0;
  for (const std::string& layer : layers_of(plan)) {
    const std::unique_ptr<Wire> wire =
        layer == "messages" ? message_wire(ends, plan.chunk) : call_wire(ends, gpu.get());
    if (!play(*wire, layer, plan, role.measures ? &report : nullptr, gpu.get(), wrong)) {
      return kFine;
    }
  }
  if (role.measures) {
    static_cast<void>(report.end());
    json.write(report.json());
  }
  return wrong == 0 ? kFine : kFailed;
}

}  // namespace
}  // namespace gtopk::programs::pingpong

int main(int argc, char** argv) {
  CLI::App app("Times messages between two ranks.", "gtopk-pingpong");
  gtopk::programs::pingpong::Options options;
  gtopk::programs::pingpong::add_options(app, options);
  return gtopk::programs::run_program(app, argc, argv,
                                      [&] { return gtopk::programs::pingpong::run(options); });
}
