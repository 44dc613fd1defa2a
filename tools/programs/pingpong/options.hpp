// gtopk-pingpong: what to measure, according to the command line. It does not know the network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/programs/job.hpp"

namespace gtopk::programs::pingpong {

/// The part of the options that both ranks must share. The measuring rank sends it to the other.
struct Plan {
  std::uint64_t begin = 8;  ///< bytes
  std::uint64_t end = 4UL << 20U;
  double factor = 2;
  std::uint32_t rounds = 1000;
  std::uint32_t warm_up = 50;
  std::string mode = "lat";
  std::uint32_t window = 64;
  std::string layers = "all";
  std::uint64_t chunk = 0;  ///< bytes; 0 means whole messages
  bool check = false;
  bool topology = false;
  std::string memory = "host";
};

struct Options {
  JobOptions job{};
  Plan plan{};
  std::string server{};      ///< HOST:PORT; if set, this rank is the client
  std::uint32_t listen = 0;  ///< port; if set, this rank is the server
  std::string json{};
};

void add_options(CLI::App& app, Options& options);

/// Checks a plan. Throws UsageError.
void check_plan(const Plan& plan);

/// The two ranks, and whether this one measures.
struct Role {
  LaunchEnvironment environment;
  bool measures = false;
};
[[nodiscard]] Role role_of(const Options& options);

/// Returns the plan as text, as sent to the other rank.
[[nodiscard]] std::string to_text(const Plan& plan);
[[nodiscard]] Plan plan_from(const std::string& text);

/// Returns the plan's layers among "messages" and "calls", in this order.
[[nodiscard]] std::vector<std::string> layers_of(const Plan& plan);

/// Returns the number of rounds for messages of this size: a tenth above 64 KiB, but at least ten.
[[nodiscard]] std::uint32_t rounds_of(const Plan& plan, std::uint64_t bytes);

}  // namespace gtopk::programs::pingpong
