#include "src/transport/topology/job_place.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <set>
#include <string_view>
#include <vector>

namespace gtopk::topology {
namespace {

struct LauncherVariables {
  const char* rank;
  const char* size;
  const char* needs;  ///< another variable that must be set
};
// Slurm also sets its variables for batch scripts, whose commands are not tasks.
constexpr std::array kLaunchers = {
    LauncherVariables{"LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"},
    LauncherVariables{"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                      "OMPI_COMM_WORLD_LOCAL_RANK"},
    LauncherVariables{"MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    LauncherVariables{"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID"},
};

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::vector<std::string> parts(const std::string& text) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) {
      found.push_back(text.substr(at, comma - at));
    }
    at = comma + 1;
  }
  return found;
}

/// Returns a UCX setting; GTOPK_UCX_<key> overrides UCX_<key>.
std::optional<std::string> ucx_setting(const Variables& variables, const std::string& key) {
  const auto ours = variables(("GTOPK_UCX_" + key).c_str());
  return ours ? ours : variables(("UCX_" + key).c_str());
}

/// Whether UCX may use more than TCP. Without UCX_TLS, gtopk chooses only TCP. UCX's aliases and
/// exclusion lists may allow more.
bool beyond_tcp(const Variables& variables) {
  static const std::set<std::string> kWithout = {
      "tcp",  "sm",    "shm",  "mm",   "posix",     "sysv",     "cma",
      "knem", "xpmem", "self", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy"};
  const std::vector<std::string> all = parts(ucx_setting(variables, "TLS").value_or(""));
  return std::any_of(all.begin(), all.end(),
                     [&](const std::string& each) { return !kWithout.contains(each); });
}

std::vector<std::string> interfaces(const Variables& variables) {
  const std::optional<std::string> text = ucx_setting(variables, "NET_DEVICES");
  std::vector<std::string> found;
  if (!text) {
    return found;
  }
  for (const std::string& each : parts(*text)) {
    if (each == "all" || each.front() == '^') {
      return {};
    }
    found.push_back(each.substr(0, each.find(':')));  // a port may follow
  }
  return found;
}

std::optional<std::vector<std::uint32_t>> gpus(const Variables& variables) {
  const auto text = variables("CUDA_VISIBLE_DEVICES");
  if (!text) {
    return std::nullopt;
  }
  std::vector<std::uint32_t> found;
  for (const std::string& each : parts(*text)) {
    const auto value = number(each);
    if (!value) {
      break;  // as in CUDA
    }
    found.push_back(*value);
  }
  return found;
}

}  // namespace

JobPlace job_place(const Variables& variables) {
  JobPlace place{.interfaces = interfaces(variables),
                 .interfaces_set = ucx_setting(variables, "NET_DEVICES").has_value(),
                 .beyond_tcp = beyond_tcp(variables),
                 .gpus = gpus(variables)};
  for (const LauncherVariables& launcher : kLaunchers) {
    const auto rank = variables(launcher.needs) ? variables(launcher.rank) : std::nullopt;
    const auto value = rank ? number(*rank) : std::nullopt;
    if (!value) {
      continue;
    }
    place.local_rank = *value;
    const auto size = variables(launcher.size);
    place.local_size = std::max(size ? number(*size).value_or(1) : 1, *value + 1);
    break;
  }
  return place;
}

std::optional<std::string> variable_here(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  return value;
}

}  // namespace gtopk::topology
