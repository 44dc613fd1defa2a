// gtopk-allreduce: what to measure, according to the command line. It does not know ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "gtopk/types.hpp"
#include "tools/programs/job.hpp"

namespace gtopk::programs::allreduce {

struct Options {
  JobOptions job{};
  std::uint64_t begin = 64UL << 10U;  ///< elements
  std::uint64_t end = 1UL << 20U;
  double factor = 4;
  std::uint32_t steps = 20;
  std::uint32_t warm_up = 5;
  double density = 0.001;
  std::uint64_t k = 0;  ///< 0 means by density
  std::string algorithms = "gtopk";
  std::string selectors = "exact";
  std::string wires = "lossless";
  std::string dtypes = "float32";
  std::string put_back = "own";
  std::string op = "sum";
  std::string memory = "host";
  bool check = false;
  bool verbose = false;
  bool topology = false;
  std::string json{};
};

void add_options(CLI::App& app, Options& options);

/// The options that must be the same on all ranks, each as on the command line.
[[nodiscard]] std::vector<std::string> shared_words(const Options& options);

/// One row of the table: the options and the number of elements.
struct Setting {
  std::uint64_t n = 0;
  DataType dtype = DataType::kFloat32;
  SparseOptions sparse{};
};

struct Settings {
  std::vector<Setting> rows;
  /// Combinations requested by `all` or a list that are not allowed, with the reason.
  std::vector<std::string> left_out;
};

/// Returns every size with every type, selector, wire and algorithm. `dense` comes before the
/// others, which are compared with it. Throws UsageError, also if nothing is left.
[[nodiscard]] Settings settings(const Options& options);

}  // namespace gtopk::programs::allreduce
