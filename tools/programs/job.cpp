#include "tools/programs/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/transport/base/tag.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs {
namespace {

constexpr std::size_t kNameBytes = 64;

/// The variables by which a launcher tells each process its rank and the number of ranks.
struct LauncherVariables {
  const char* rank;
  const char* ranks;
  const char* launcher;
};
constexpr std::array kLaunchers = {
    LauncherVariables{"RANK", "WORLD_SIZE", "torchrun"},
    LauncherVariables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"},
};

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

std::uint32_t number(std::string_view what, std::string_view text, std::uint32_t most) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) {
    throw UsageError(fmt::format("{} is '{}': expected a number from 0 to {}", what, text, most));
  }
  return value;
}

/// The name of the launcher that the library asks, by PMIx or by the variables of a Slurm step.
constexpr auto kLauncher = "the launcher";

struct Place {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::string said_by;  ///< empty if nothing gives the rank
};

Place place_of(const JobOptions& options) {
  if (options.rank.has_value() != options.ranks.has_value()) {
    throw UsageError("--rank and --ranks go together");
  }
  if (options.rank) {
    return {*options.rank, *options.ranks, "--ranks"};
  }
  for (const LauncherVariables& launcher : kLaunchers) {
    const auto rank = variable(launcher.rank);
    const auto ranks = variable(launcher.ranks);
    if (!rank || !ranks) {
      continue;
    }
    return {number(launcher.rank, *rank, transport::kMaxRanks),
            number(launcher.ranks, *ranks, transport::kMaxRanks), launcher.launcher};
  }
  return {.said_by = has_launcher() ? kLauncher : ""};
}

/// Asks the launcher for the rendezvous, by PMIx.
LaunchEnvironment told_by_launcher(const Place& place) {
  try {
    return launcher_environment();
  } catch (const Error& error) {
    throw UsageError(
        fmt::format("{} says that there are {} ranks: --rendezvous HOST:PORT says where they meet, "
                    "as {}",
                    place.said_by, place.ranks, error.what()));
  }
}

}  // namespace

void add_job_options(CLI::App& app, JobOptions& options) {
  constexpr auto kGroup = "Job";
  app.add_option("--rank", options.rank, "this rank, from 0; default: the launcher's")
      ->group(kGroup);
  app.add_option("--ranks", options.ranks, "the number of ranks")->group(kGroup);
  app.add_option("--rendezvous", options.rendezvous,
                 "HOST:PORT where rank 0 listens and the others find it")
      ->group(kGroup);
  app.add_option("--timeout", options.timeout, "seconds, for the meeting and for each operation")
      ->capture_default_str()
      ->group(kGroup);
}

std::chrono::nanoseconds timeout_of(const JobOptions& options) {
  constexpr double kMost = 1e6;
  if (!(options.timeout > 0) || options.timeout > kMost) {
    throw UsageError(fmt::format("--timeout is {}: expected seconds above 0, at most {:g}",
                                 options.timeout, kMost));
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.timeout));
}

LaunchEnvironment rendezvous_at(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (colon == std::string::npos || host.empty()) {
    throw UsageError(fmt::format("'{}' is not an address: expected HOST:PORT", text));
  }
  const std::uint32_t port = number("the port", text.substr(colon + 1), 65535);
  if (port == 0) {
    throw UsageError(fmt::format("'{}' has port 0: expected one from 1 on", text));
  }
  return {.rank = 0,
          .world_size = 1,
          .host = std::move(host),
          .port = static_cast<std::uint16_t>(port)};
}

LaunchEnvironment launched(const JobOptions& options) {
  const Place place = place_of(options);
  if (place.ranks < 1 || place.ranks > transport::kMaxRanks || place.rank >= place.ranks) {
    throw UsageError(
        fmt::format("rank {} of {} ranks ({}): expected a rank below the ranks, of "
                    "which there are 1 to {}",
                    place.rank, place.ranks, place.said_by, transport::kMaxRanks));
  }
  LaunchEnvironment environment;
  if (!options.rendezvous.empty()) {
    environment = rendezvous_at(options.rendezvous);
    if (place.said_by == kLauncher) {  // the launcher has not been asked for the rank yet
      const LaunchEnvironment told = launcher_environment();
      environment.rank = told.rank;
      environment.world_size = told.world_size;
      return environment;
    }
  } else if (place.said_by == "torchrun") {
    return launch_environment();
  } else if (place.said_by == "--ranks" && place.ranks > 1) {
    throw UsageError(
        fmt::format("{} ranks: --rendezvous HOST:PORT says where they meet", place.ranks));
  } else if (place.said_by == kLauncher) {
    return launcher_environment();
  } else if (place.ranks > 1) {
    return told_by_launcher(place);
  }
  environment.rank = place.rank;
  environment.world_size = place.ranks;
  return environment;
}

std::shared_ptr<KeyValueStore> join(const LaunchEnvironment& environment,
                                    std::chrono::nanoseconds timeout) {
  if (environment.world_size == 1) {
    return nullptr;
  }
  name_in_errors(fmt::format("rank {}", environment.rank));
  return join_rendezvous(environment, timeout);
}

Job::Job(const LaunchEnvironment& environment, std::chrono::nanoseconds timeout,
         const std::shared_ptr<KeyValueStore>& store) {
  process_ = Process::start();
  group_ = std::make_unique<Communicator>(
      process_, Meeting{.directory = store == nullptr ? nullptr : directory_over(store),
                        .name = "programs",
                        .rank = environment.rank,
                        .size = environment.world_size,
                        .timeout = timeout});
  std::vector<char> name(kNameBytes, '\0');
  machine_name().copy(name.data(), kNameBytes - 1);
  for (const std::vector<char>& one : gathered(name)) {
    machines_.emplace_back(one.data());
  }
}

std::future<void> Job::begin(Collective collective, std::shared_ptr<Gate> input,
                             std::uint64_t* number, std::shared_ptr<void> keepalive) {
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> future = ended->get_future();
  const std::uint64_t given =
      group_->run(std::move(collective), {.done =
                                              [ended](const std::exception_ptr& error) {
                                                if (error) {
                                                  ended->set_exception(error);
                                                } else {
                                                  ended->set_value();
                                                }
                                              },
                                          .keepalive = std::move(keepalive),
                                          .input = std::move(input)});
  if (number != nullptr) {
    *number = given;
  }
  return future;
}

void Job::run(Collective collective) { begin(std::move(collective)).get(); }

bool Job::takes(Memory::Kind kind) const {
  bool all = size() > 1;
  for (std::uint32_t other = 0; other < size(); ++other) {
    all = all && (other == rank() || takes(kind, other));
  }
  return all;
}

void Job::use(const Gpu& gpu) {
  process_->use([&gpu](Memory) { gpu.make_current(); });
}

void Job::check_alike(const std::vector<std::string>& words) {
  const std::string mine = fmt::format("{}", fmt::join(words, "\n"));
  std::size_t longest = 0;
  for (const std::vector<std::size_t>& one : gathered(std::vector{mine.size()})) {
    longest = std::max(longest, one.front());
  }
  std::vector<char> text(longest + 1, '\0');
  mine.copy(text.data(), mine.size());
  const std::vector<std::vector<char>> texts = gathered(text);
  for (std::uint32_t other = 1; other < size(); ++other) {
    std::istringstream zeros(texts.front().data());
    std::istringstream others(texts[other].data());
    std::string expected;
    std::string seen;
    while (std::getline(zeros, expected) && std::getline(others, seen)) {
      if (seen != expected) {
        throw std::runtime_error(fmt::format(
            "rank {} was started with {}, rank 0 with {}: give all ranks the same options", other,
            seen, expected));
      }
    }
  }
}

bool Job::agree(bool value) {
  std::array<std::byte, 1> flag{value ? std::byte{1} : std::byte{0}};
  run(gtopk::broadcast(flag, 0));
  return flag[0] != std::byte{0};
}

std::string machine_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string described_hosts(const Job& job, const std::vector<std::uint32_t>& hosts) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> ranks_of;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
    ranks_of[hosts[rank]].push_back(rank);
  }
  std::vector<std::string> each;
  each.reserve(ranks_of.size());
  for (const auto& [host, ranks] : ranks_of) {
    each.push_back(fmt::format("{} ({})", job.machines()[ranks.front()], fmt::join(ranks, ", ")));
  }
  return fmt::format("{} rank{} on {} host{}: {}", hosts.size(), hosts.size() == 1 ? "" : "s",
                     each.size(), each.size() == 1 ? "" : "s", fmt::join(each, ", "));
}

}  // namespace gtopk::programs
