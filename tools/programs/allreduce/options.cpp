#include "tools/programs/allreduce/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "tools/programs/allreduce/check.hpp"
#include "tools/programs/allreduce/data.hpp"
#include "tools/programs/gpu.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs::allreduce {
namespace {

/// The types of sparse all-reduces.
const std::vector<Choice>& dtypes() {
  static const std::vector<Choice> choices = {{to_string(DataType::kFloat32), ""},
                                              {to_string(DataType::kFloat64), ""},
                                              {to_string(DataType::kBfloat16), ""},
                                              {to_string(DataType::kFloat16), ""}};
  return choices;
}

DataType dtype_named(const std::string& name) {
  constexpr std::array kTypes = {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16,
                                 DataType::kFloat16};
  return *std::find_if(kTypes.begin(), kTypes.end(),
                       [&](DataType type) { return to_string(type) == name; });
}

/// Returns the options that all rows have in common.
SparseOptions common(const Options& options) {
  SparseOptions sparse;
  if (options.k != 0) {
    sparse.k = options.k;
  } else if (options.density > 0 && options.density <= 1) {
    sparse.density = options.density;
  } else {
    throw UsageError(
        fmt::format("--density is {}: expected one above 0, at most 1", options.density));
  }
  sparse.put_back = options.put_back == "own" ? PutBack::kOwn : PutBack::kMerged;
  sparse.op = options.op == "sum" ? ReduceOp::kSum : ReduceOp::kAvg;
  return sparse;
}

std::vector<std::string> dense_first(std::vector<std::string> names) {
  const auto dense = std::find(names.begin(), names.end(), "dense");
  if (dense != names.end()) {
    std::rotate(names.begin(), dense, dense + 1);
  }
  return names;
}

/// Says why the library rejects the setting in any group; empty if it does not.
std::string refusal(const Setting& setting) {
  try {
    static_cast<void>(sparse_all_reduce(nullptr, nullptr, 0, setting.dtype, setting.sparse));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

void check_sizes(const Options& options) {
  const auto elements = static_cast<double>(options.end);
  if (elements > 0x1p60) {
    throw UsageError(fmt::format("-e is {} elements: expected at most 2^60", options.end));
  }
  std::uint64_t bytes = 0;
  for (const std::string& name : chosen("--dtype", options.dtypes, dtypes())) {
    bytes = std::max(bytes, bytes_needed(options.end, dtype_named(name)));
  }
  check_memory(bytes, fmt::format("-e {}", options.end));
  if (options.check && options.end > kMostChecked) {
    throw UsageError(
        fmt::format("--check compares with a sequential program, which takes long: "
                    "-e is {}, expected at most {}",
                    options.end, kMostChecked));
  }
}

/// Adds a row for each wire and algorithm; everything else is as in `row`.
void add_rows(const Options& options, Setting row, Settings& settings) {
  for (const std::string& wire : chosen("--wire", options.wires, wires())) {
    row.sparse.wire = wire;
    for (const std::string& algorithm :
         dense_first(chosen("--algorithm", options.algorithms, algorithms()))) {
      row.sparse.algorithm = algorithm;
      const std::string why = refusal(row);
      if (why.empty()) {
        settings.rows.push_back(row);
      } else {
        settings.left_out.push_back(fmt::format(
            "{}, {}, {}, {}: {}", algorithm, row.sparse.selector, wire, to_string(row.dtype), why));
      }
    }
  }
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  add_size(app, "-b,--begin", options.begin, "smallest number of elements");
  add_size(app, "-e,--end", options.end, "largest number of elements");
  app.add_option("-f,--factor", options.factor, "from each size to the next")
      ->capture_default_str();
  app.add_option("-n,--steps", options.steps, "measured steps of each row")
      ->check(CLI::Range(1U, 1'000'000U))
      ->capture_default_str();
  app.add_option("-w,--warm-up", options.warm_up, "unmeasured steps before them")
      ->check(CLI::Range(0U, 1'000'000U))
      ->capture_default_str();
  CLI::Option* const density =
      app.add_option("--density", options.density, "share of the elements that each rank selects")
          ->capture_default_str();
  app.add_option("-k,--selected", options.k, "entries that each rank selects, instead of --density")
      ->check(CLI::PositiveNumber)
      ->excludes(density);
  app.add_option("-a,--algorithm", options.algorithms, "names, or all")->capture_default_str();
  app.add_option("--select", options.selectors, "names, or all")->capture_default_str();
  app.add_option("--wire", options.wires, "names, or all")->capture_default_str();
  app.add_option("--dtype", options.dtypes, "float32, float64, bfloat16, float16, or all")
      ->capture_default_str();
  app.add_option("--put-back", options.put_back, "where selected entries go that are not delivered")
      ->check(CLI::IsMember({"own", "merged"}))
      ->capture_default_str();
  app.add_option("--op", options.op, "reduction")
      ->check(CLI::IsMember({"sum", "avg"}))
      ->capture_default_str();
  add_memory(app, options.memory);
  app.add_flag("--check", options.check,
               "compare tensor and residual of two steps, bit for bit, with the sequential "
               "reference, before each row is measured");
  app.add_option("--json", options.json, "write settings and every sample to this file (rank 0)");
  app.add_flag("--topology", options.topology,
               "print where each rank is: host, cores, binding, NIC");
  app.add_flag("-v,--verbose", options.verbose,
               "also print the shares of selecting, exchanging, committing");
  add_job_options(app, options.job);
  app.footer(
      fmt::format("Lists are separated by commas.\n\nAlgorithms:\n{}\nSelectors:\n{}\nWires:\n{}\n"
                  "Exit code: 0; 1 for a wrong element or an error; 2 for invalid "
                  "arguments.\n",
                  described(algorithms()), described(selectors()), described(wires())));
}

std::vector<std::string> shared_words(const Options& options) {
  const auto flag = [](const char* name, bool given) {
    return fmt::format("{}{}", given ? "" : "no ", name);
  };
  return {fmt::format("-b {}", options.begin),
          fmt::format("-e {}", options.end),
          fmt::format("-f {}", options.factor),
          fmt::format("-n {}", options.steps),
          fmt::format("-w {}", options.warm_up),
          options.k != 0 ? fmt::format("-k {}", options.k)
                         : fmt::format("--density {}", options.density),
          fmt::format("-a {}", options.algorithms),
          fmt::format("--select {}", options.selectors),
          fmt::format("--wire {}", options.wires),
          fmt::format("--dtype {}", options.dtypes),
          fmt::format("--put-back {}", options.put_back),
          fmt::format("--op {}", options.op),
          fmt::format("-m {}", options.memory),
          flag("--check", options.check),
          flag("--topology", options.topology)};
}

Settings settings(const Options& options) {
  check_sizes(options);
  Settings settings;
  for (const std::string& dtype : chosen("--dtype", options.dtypes, dtypes())) {
    for (const std::string& selector : chosen("--select", options.selectors, selectors())) {
      Setting row{.dtype = dtype_named(dtype), .sparse = common(options)};
      row.sparse.selector = selector;
      for (const std::uint64_t n : sizes_between(options.begin, options.end, options.factor)) {
        row.n = n;
        if (selector != "block" && options.k == 0) {
          row.sparse.k = selection_size(n, options.density);
          row.sparse.density = 0;
        }
        add_rows(options, row, settings);
      }
    }
  }
  if (settings.rows.empty()) {
    throw UsageError(settings.left_out.front());
  }
  return settings;
}

}  // namespace gtopk::programs::allreduce
