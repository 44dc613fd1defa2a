#include "gtopk/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/bootstrap/pmix_client.hpp"

namespace gtopk {
namespace {

bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

std::string why_no_pmix() {
  const std::string why = bootstrap::PmixClient::why_not();
  return why.empty() ? "" : fmt::format(", and PMIx cannot be asked ({})", why);
}

std::string_view required(const char* name) {
  if (!is_set(name)) {
    throw Error(
        ErrorKind::kBootstrap,
        fmt::format("{} is not set{}: start the ranks with torchrun, mpirun, prterun or srun "
                    "--mpi=pmix, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each",
                    name, why_no_pmix()));
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

/// torchrun's agent may serve a torch store at MASTER_PORT, which it then says. Linux gives
/// listeners and outgoing connections ports of different parity, so the next port but one is rarely
/// taken.
bool agent_serves_store() {
  const char* const value = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return value != nullptr && std::string_view(value) == "True";
}

}  // namespace

LaunchEnvironment pmix_environment() { return told_by(bootstrap::PmixClient::required()); }

LaunchEnvironment launch_environment() {
  if (!is_set("RANK")) {
    if (bootstrap::PmixClient* const pmix = bootstrap::PmixClient::get()) {
      return told_by(*pmix);
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
