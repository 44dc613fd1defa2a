#include "gtopk/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/bootstrap/pmix_client.hpp"
#include "src/transport/bootstrap/slurm_step.hpp"

namespace gtopk {
namespace {

constexpr const char* kPmixServer = "PMIX_NAMESPACE";

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

bool is_set(const char* name) { return variable(name).has_value(); }

/// Returns the step in which srun started this process, if no PMIx server did. A PMIx server must
/// be asked on every rank: it may be Slurm's own, or the server of an mpirun whose helpers srun
/// started.
std::optional<bootstrap::SlurmStep> step_without_pmix() {
  return is_set(kPmixServer) ? std::nullopt : bootstrap::slurm_step(variable);
}

/// Returns an addition to an error text if there are signs of a launcher, else an empty string.
std::string why_no_launcher() {
  const std::string why = bootstrap::PmixClient::why_not();
  if (!why.empty()) {
    return fmt::format(", and PMIx is not usable ({}){}", why,
                       bootstrap::slurm_step(variable) ? "; srun --mpi=none works without it" : "");
  }
  return is_set("SLURM_JOB_ID") ? ", and " + bootstrap::why_no_slurm_step(variable) : "";
}

std::string_view required(const char* name) {
  if (!is_set(name)) {
    throw Error(
        ErrorKind::kBootstrap,
        fmt::format("{} is not set{}: start the ranks with torchrun, mpirun, prterun or srun, or "
                    "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each",
                    name, is_set("RANK") ? "" : why_no_launcher()));
  }
  return std::getenv(name);
}

std::uint32_t required_number(const char* name, std::uint32_t least, std::uint32_t most) {
  const std::string_view text = required(name);
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorKind::kBootstrap, fmt::format("{} is '{}': expected a number from {} to {}",
                                                   name, text, least, most));
  }
  return value;
}

LaunchEnvironment told_by(bootstrap::PmixClient& pmix) {
  LaunchEnvironment environment;
  environment.rank = pmix.rank();
  environment.world_size = pmix.size();
  environment.pmix = true;
  environment.local_rank = pmix.local_rank();
  environment.local_world_size = pmix.local_size();
  transport::log().info("launch: rank {} of {} by {}{}", pmix.rank(), pmix.size(),
                        pmix.description(), is_set("RANK") ? "" : ", as RANK is not set");
  return environment;
}

/// Uses the step's first host and port for rank 0, unless the job's script has set others.
LaunchEnvironment told_by(bootstrap::SlurmStep step) {
  LaunchEnvironment environment;
  environment.rank = step.rank;
  environment.world_size = step.size;
  environment.local_rank = step.local_rank;
  environment.local_world_size = step.local_size;
  environment.host = variable("MASTER_ADDR").value_or(std::move(step.first_host));
  environment.port = is_set("MASTER_PORT")
                         ? static_cast<std::uint16_t>(required_number("MASTER_PORT", 1, 65535))
                         : step.port;
  if (environment.host.empty()) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("{} has no SLURM_STEP_NODELIST: set MASTER_ADDR to the name of the "
                            "host of rank 0",
                            step.description));
  }
  transport::log().info("launch: rank {} of {} by {}, rendezvous at {}:{}", step.rank, step.size,
                        step.description, environment.host, environment.port);
  return environment;
}

std::optional<LaunchEnvironment> by_launcher() {
  if (bootstrap::PmixClient* const pmix = bootstrap::PmixClient::get()) {
    return told_by(*pmix);
  }
  if (std::optional<bootstrap::SlurmStep> step = step_without_pmix()) {
    return told_by(*std::move(step));
  }
  return std::nullopt;
}

/// torchrun's agent may serve a torch store at MASTER_PORT, which it then announces. Linux gives
/// listeners and outgoing connections ports of different parity, so the port two above is rarely
/// taken.
bool agent_serves_store() {
  const char* const value = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return value != nullptr && std::string_view(value) == "True";
}

}  // namespace

bool has_launcher() { return is_set(kPmixServer) || step_without_pmix(); }

LaunchEnvironment launcher_environment() {
  if (std::optional<LaunchEnvironment> found = by_launcher()) {
    return *std::move(found);
  }
  std::string why = why_no_launcher();
  if (!is_set(kPmixServer)) {
    why = fmt::format(": no PMIx server started it ({} is not set), and {}", kPmixServer,
                      bootstrap::why_no_slurm_step(variable));
  }
  throw Error(ErrorKind::kBootstrap,
              fmt::format("no launcher says which rank this process is{}. Start the ranks with "
                          "mpirun, prterun or srun",
                          why));
}

LaunchEnvironment launch_environment() {
  if (!is_set("RANK")) {
    if (std::optional<LaunchEnvironment> found = by_launcher()) {
      return *std::move(found);
    }
  }
  LaunchEnvironment environment;
  environment.world_size = required_number("WORLD_SIZE", 1, transport::kMaxRanks);
  environment.rank = required_number("RANK", 0, environment.world_size - 1);
  environment.host = required("MASTER_ADDR");
  const std::uint32_t taken = agent_serves_store() ? 2 : 0;
  environment.port =
      static_cast<std::uint16_t>(required_number("MASTER_PORT", 1, 65535 - taken) + taken);
  transport::log().info("launch: rank {} of {} by RANK and WORLD_SIZE, rendezvous at {}:{}",
                        environment.rank, environment.world_size, environment.host,
                        environment.port);
  return environment;
}

}  // namespace gtopk
