#include "src/transport/bootstrap/slurm_step.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "gtopk/error.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::bootstrap {
namespace {

/// Steps that srun does not start (batch scripts, salloc's shells) have numbers from this one on.
constexpr std::uint32_t kFirstSpecialStep = 0xfffffff0U;

constexpr std::uint64_t kFirstPort = 10000;
constexpr std::uint64_t kPorts = 19000;  ///< below torch's usual ports, 29400 and 29500
constexpr std::uint64_t kStepsApart = 101;

/// The variables by which other launchers number processes. Some of them start helpers by srun, and
/// their processes inherit srun's variables.
struct LauncherVariables {
  const char* rank;
  const char* size;
};
constexpr std::array kOtherLaunchers = {
    LauncherVariables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    LauncherVariables{"PMI_RANK", "PMI_SIZE"},
};

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

template <class Number>
Number required(const Variables& variables, const char* name, Number least, Number most) {
  const std::optional<std::string> text = variables(name);
  if (!text) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("SLURM_STEP_ID is set, but {} is not: start the ranks with srun, or "
                            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each",
                            name));
  }
  const auto value = number<Number>(*text);
  if (!value || *value < least || *value > most) {
    throw Error(ErrorKind::kBootstrap, fmt::format("{} is '{}': expected a number from {} to {}",
                                                   name, *text, least, most));
  }
  return *value;
}

/// The number of tasks on a node, from a list such as "4(x2),3": 4, 4, 3.
std::optional<std::uint32_t> tasks_of(std::string_view counts, std::uint32_t node) {
  while (!counts.empty()) {
    const std::size_t comma = std::min(counts.find(','), counts.size());
    const std::string_view group = counts.substr(0, comma);
    counts.remove_prefix(std::min(comma + 1, counts.size()));
    const std::size_t times = std::min(group.find("(x"), group.size());
    const bool once = times == group.size();
    const auto tasks = number<std::uint32_t>(group.substr(0, times));
    const auto nodes =
        once ? 1 : number<std::uint32_t>(group.substr(times + 2, group.size() - times - 3));
    if (!tasks || !nodes) {
      return std::nullopt;
    }
    if (node < *nodes) {
      return tasks;
    }
    node -= *nodes;
  }
  return std::nullopt;
}

/// Whether srun started a step whose variables this process has.
bool has_step(const Variables& variables) {
  const auto step = variables("SLURM_STEP_ID");
  return step && number<std::uint32_t>(*step).value_or(0) < kFirstSpecialStep;
}

/// Returns the variable by which another launcher numbers this process differently, or null.
const char* other_rank(const Variables& variables) {
  for (const LauncherVariables& launcher : kOtherLaunchers) {
    const auto rank = variables(launcher.rank);
    if (rank && (rank != variables("SLURM_PROCID") ||
                 variables(launcher.size) != variables("SLURM_STEP_NUM_TASKS"))) {
      return launcher.rank;
    }
  }
  return nullptr;
}

}  // namespace

std::string first_host(std::string_view hosts) {
  std::string first;
  bool skipping = false;  // whether the loop is in the rest of a bracket
  bool inside = false;
  for (const char letter : hosts) {
    if (letter == '[') {
      inside = true;
    } else if (letter == ']') {
      inside = skipping = false;
    } else if (inside && (letter == '-' || letter == ',')) {
      skipping = true;
    } else if (!inside && letter == ',') {
      break;
    } else if (!skipping) {
      first += letter;
    }
  }
  return first;
}

std::optional<SlurmStep> slurm_step(const Variables& variables) {
  if (!has_step(variables) || other_rank(variables) != nullptr) {
    return std::nullopt;
  }
  constexpr auto kAny = std::numeric_limits<std::uint64_t>::max();
  const auto job = required<std::uint64_t>(variables, "SLURM_JOB_ID", 0, kAny);
  const auto step = required<std::uint32_t>(variables, "SLURM_STEP_ID", 0, kFirstSpecialStep - 1);
  SlurmStep found;
  found.size = required<std::uint32_t>(variables, "SLURM_STEP_NUM_TASKS", 1, transport::kMaxRanks);
  found.rank = required<std::uint32_t>(variables, "SLURM_PROCID", 0, found.size - 1);
  found.first_host = first_host(variables("SLURM_STEP_NODELIST").value_or(""));
  found.port =
      static_cast<std::uint16_t>(kFirstPort + (job % kPorts * kStepsApart + step) % kPorts);
  found.description = fmt::format("Slurm step {}.{}", job, step);
  const auto local = variables("SLURM_LOCALID");
  const auto node = variables("SLURM_NODEID");
  const auto counts = variables("SLURM_STEP_TASKS_PER_NODE");
  found.local_rank = local ? number<std::uint32_t>(*local) : std::nullopt;
  if (const auto place = node ? number<std::uint32_t>(*node) : std::nullopt; place && counts) {
    found.local_size = tasks_of(*counts, *place);
  }
  return found;
}

std::string why_no_slurm_step(const Variables& variables) {
  const auto job = variables("SLURM_JOB_ID");
  if (!job) {
    return "srun did not start it either (SLURM_STEP_ID is not set)";
  }
  if (has_step(variables)) {
    return fmt::format("it is not one of srun's tasks: {} differs from SLURM_PROCID",
                       other_rank(variables));
  }
  return fmt::format(
      "it runs in Slurm job {}, but srun did not start it: put srun before the command", *job);
}

}  // namespace gtopk::bootstrap
