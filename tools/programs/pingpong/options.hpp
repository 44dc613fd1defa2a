// gtopk-pingpong: what to measure, according to the command line. It knows no network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tools/programs/job.hpp"

namespace gtopk::programs::pingpong {

/// What both ranks must do alike: the measuring one sends it to the other.
struct Plan {
  std::uint64_t begin = 8;  ///< bytes
  std::uint64_t end = 4UL << 20U;
  double factor = 2;
  std::uint32_t rounds = 1000;
  std::uint32_t warm_up = 50;
  std::string mode = "lat";
  std::uint32_t window = 64;
  std::string layers = "all";
  std::uint64_t chunk = 0;  ///< bytes; 0: whole messages
  bool check = false;
  bool topology = false;
  std::string memory = "host";
};

struct Options {
  JobOptions job{};
  Plan plan{};
  std::string server{};      ///< HOST:PORT: this rank is the client
  std::uint32_t listen = 0;  ///< port: this rank is the server
  std::string json{};
};

void add_options(CLI::App& app, Options& options);

/// Throws UsageError.
void check_plan(const Plan& plan);

/// Which two ranks there are, and whether this one measures.
struct Role {
  LaunchEnvironment environment;
  bool measures = false;
};
[[nodiscard]] Role role_of(const Options& options);

/// The plan as sent to the other rank.
[[nodiscard]] std::string to_text(const Plan& plan);
[[nodiscard]] Plan plan_from(const std::string& text);

/// "messages", "calls", in this order.
[[nodiscard]] std::vector<std::string> layers_of(const Plan& plan);

/// Rounds for messages of this size: a tenth above 64 KiB, at least ten.
[[nodiscard]] std::uint32_t rounds_of(const Plan& plan, std::uint64_t bytes);

}  // namespace gtopk::programs::pingpong
