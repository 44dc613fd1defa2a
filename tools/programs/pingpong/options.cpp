#include "tools/programs/pingpong/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/programs/gpu.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs::pingpong {
namespace {

constexpr std::uint64_t kLong = 65536;
constexpr std::uint32_t kFewest = 10;

const std::vector<Choice>& layers() {
  static const std::vector<Choice> choices = {
      {"messages", "the transport alone, progressed by this thread"},
      {"calls", "send and recv of a group: through the queue and the engine's thread"}};
  return choices;
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  Plan& plan = options.plan;
  app.add_option("server", options.server, "HOST:PORT of a gtopk-pingpong that listens");
  app.add_option("--listen", options.listen, "be the server on this port, for one client")
      ->check(CLI::Range(1U, 65535U));
  add_size(app, "-b,--begin", plan.begin, "smallest size in bytes");
  add_size(app, "-e,--end", plan.end, "largest size in bytes");
  app.add_option("-f,--factor", plan.factor, "from each size to the next")->capture_default_str();
  app.add_option("-n,--rounds", plan.rounds, "measured rounds of each row; a tenth above 64 KiB")
      ->check(CLI::Range(1U, 10'000'000U))
      ->capture_default_str();
  app.add_option("-w,--warm-up", plan.warm_up, "unmeasured rounds before them")
      ->check(CLI::Range(0U, 10'000'000U))
      ->capture_default_str();
  app.add_option("--mode", plan.mode,
                 "lat: half of a round trip; exchange: both ways at once; bw: a window of "
                 "messages one way, then an acknowledgement")
      ->check(CLI::IsMember({"lat", "exchange", "bw"}))
      ->capture_default_str();
  app.add_option("--window", plan.window, "messages in flight at once, for --mode bw")
      ->check(CLI::Range(1U, 4096U))
      ->capture_default_str();
  app.add_option("--layer", plan.layers, "messages, calls, or all")->capture_default_str();
  add_size(app, "--chunk", plan.chunk,
           "send each message of layer `messages` in parts of this many "
           "bytes; 0: whole");
  app.add_flag("--check", plan.check, "compare every byte of three rounds before each row");
  add_memory(app, plan.memory);
  app.add_flag("--topology", plan.topology,
               "print where both ranks are: host, cores, binding, NIC");
  app.add_option("--json", options.json, "write every sample to this file");
  add_job_options(app, options.job);
  app.footer(fmt::format(
      "Two ranks: gtopk-pingpong --listen 29600 on one host and gtopk-pingpong HOST:29600 on the "
      "other, or any\nlauncher of two. The client, or else rank 0, measures and prints; its "
      "options count on both sides.\n\nLayers:\n{}\nExit code: 0; 1 for a wrong byte or an error; "
      "2 for invalid arguments.\n",
      described(layers())));
}

void check_plan(const Plan& plan) {
  static_cast<void>(sizes_between(plan.begin, plan.end, plan.factor));
  const std::uint64_t pinned = plan.memory == "cuda" && plan.mode == "bw" ? plan.window : 0;
  check_memory((2 + 2 * pinned) * plan.end, fmt::format("-e {}", plan.end));
  constexpr std::uint64_t kMostParts = 4096;
  if (plan.chunk != 0 && (plan.end - 1) / plan.chunk >= kMostParts) {
    throw UsageError(fmt::format("--chunk {} cuts {} bytes into more than {} parts", plan.chunk,
                                 plan.end, kMostParts));
  }
  static_cast<void>(layers_of(plan));
}

Role role_of(const Options& options) {
  const bool by_address = !options.server.empty() || options.listen != 0;
  if (by_address && (options.job.rank || !options.job.rendezvous.empty())) {
    throw UsageError("an address or --listen already gives the rank: no --rank, --rendezvous");
  }
  if (!options.server.empty() && options.listen != 0) {
    throw UsageError("either the address of a server, or --listen to be one");
  }
  Role role;
  if (options.listen != 0) {
    role.environment.port = static_cast<std::uint16_t>(options.listen);
  } else if (!options.server.empty()) {
    role.environment = rendezvous_at(options.server);
    role.environment.rank = 1;
    role.measures = true;
  } else {
    role.environment = launched(options.job);
    role.measures = role.environment.rank == 0;
    if (role.environment.world_size != 2) {
      throw UsageError(
          fmt::format("{} rank{}: expected two (--listen PORT here, then "
                      "gtopk-pingpong HOST:PORT there)",
                      role.environment.world_size, role.environment.world_size == 1 ? "" : "s"));
    }
  }
  role.environment.world_size = 2;
  return role;
}

std::string to_text(const Plan& plan) {
  return nlohmann::json{plan.begin,   plan.end,   plan.factor,   plan.rounds,
                        plan.warm_up, plan.mode,  plan.window,   plan.layers,
                        plan.chunk,   plan.check, plan.topology, plan.memory}
      .dump();
}

Plan plan_from(const std::string& text) {
  const auto fields = nlohmann::json::parse(text);
  Plan plan;
  plan.begin = fields.at(0);
  plan.end = fields.at(1);
  plan.factor = fields.at(2);
  plan.rounds = fields.at(3);
  plan.warm_up = fields.at(4);
  plan.mode = fields.at(5);
  plan.window = fields.at(6);
  plan.layers = fields.at(7);
  plan.chunk = fields.at(8);
  plan.check = fields.at(9);
  plan.topology = fields.at(10);
  plan.memory = fields.at(11);
  return plan;
}

std::vector<std::string> layers_of(const Plan& plan) {
  return chosen("--layer", plan.layers, layers());
}

std::uint32_t rounds_of(const Plan& plan, std::uint64_t bytes) {
  if (bytes <= kLong) {
    return plan.rounds;
  }
  return std::min(plan.rounds, std::max(kFewest, plan.rounds / 10));
}

}  // namespace gtopk::programs::pingpong
