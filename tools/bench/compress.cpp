// Benchmark (a): the whole compress step of one rank (select, exactly unless --select says
// otherwise, compact, commit) on one thread, in turn with a memcpy of the same d floats and with
// the least that any such step does to memory: one sweep that reads both arrays, and one that
// writes both. Also the merge of two selections, with re-selection, in turn with std::merge of
// their pairs. Prints `#` lines of provenance and one aligned row per phase; --json FILE adds the
// raw samples.
#include <hwy/highway.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtopk/types.hpp"
#include "gtopk_version.hpp"
#include "src/gtopk/merge/merge.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/value/growing_buffer.hpp"

namespace {

using gtopk::sparse::Entries;
using gtopk::sparse::EntriesOut;
using Clock = std::chrono::steady_clock;

struct Options {
  std::size_t d = 25'557'032;  // ResNet-50's parameters
  double density = 0.001;
  std::string select = "exact";
  std::size_t block = 4096;
  int iterations = 40;
  int warm_up = 3;
  std::uint64_t seed = 1;
  std::string json;
};

/// Milliseconds per iteration.
struct Phase {
  std::string name;
  std::vector<double> samples;

  [[nodiscard]] double quantile(double q) const {
    std::vector<double> sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
};

template <class Work>
double milliseconds(Work work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Plain operator new, as torch's allocator uses malloc: page size and alignment are what users
/// get. Touched here, so that page faults are not timed.
class Floats {
 public:
  explicit Floats(std::size_t count) : data_(memory_.array<float>(count)) {
    std::fill_n(data_, count, 0.0F);
  }
  [[nodiscard]] float* get() const { return data_; }

 private:
  gtopk::sparse::GrowingBuffer memory_;
  float* data_;
};

struct List {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::size_t size = 0;

  explicit List(std::size_t capacity) : indices(capacity), values(capacity) {}
  [[nodiscard]] Entries<float, std::uint32_t> view() const {
    return {indices.data(), values.data(), size};
  }
  [[nodiscard]] EntriesOut<float, std::uint32_t> out() { return {indices.data(), values.data()}; }
};

/// What another rank with independent data of the same kind would send.
List other_selection(std::size_t d, std::size_t k, std::mt19937_64& random) {
  List list(k);
  std::uniform_int_distribution<std::uint32_t> index(0, static_cast<std::uint32_t>(d - 1));
  std::vector<std::uint32_t> all(2 * k + 16);
  std::generate(all.begin(), all.end(), [&] { return index(random); });
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::shuffle(all.begin(), all.end(), random);
  all.resize(std::min(k, all.size()));
  std::sort(all.begin(), all.end());
  std::exponential_distribution<float> excess(0.4F);
  list.size = all.size();
  list.indices = all;
  list.values.resize(all.size());
  std::generate(list.values.begin(), list.values.end(), [&] {
    const float magnitude = 4.6F + excess(random);
    return (random() & 1U) != 0 ? magnitude : -magnitude;
  });
  return list;
}

using Pairs = std::vector<std::pair<std::uint32_t, float>>;

Pairs pairs_of(const List& list) {
  Pairs pairs(list.size);
  for (std::size_t i = 0; i < list.size; ++i) {
    pairs[i] = {list.indices[i], list.values[i]};
  }
  return pairs;
}

/// Reads both arrays once, with the one addition that every selection makes.
std::uint32_t read_both(const float* left, const float* right, std::size_t d) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < d; ++i) {
    bits |= std::bit_cast<std::uint32_t>(left[i] + right[i]);
  }
  return bits;
}

/// The phases in the order in which they are printed.
enum Row : std::uint8_t {
  kMemcpy,
  kRead,
  kWrite,
  kSweeps,
  kSelect,
  kCommit,
  kStep,
  kStdMerge,
  kMerge
};

std::string first_line_after(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) {
      return line.substr(std::min(line.find(": ") + 2, line.size()));
    }
  }
  return "unknown";
}

std::string whole_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : "unknown";
}

struct Results {
  std::size_t k = 0;
  std::size_t selected = 0;  ///< in the last iteration
  std::vector<Phase> phases;

  [[nodiscard]] double over(Row row, Row base) const {
    return phases[row].quantile(0.5) / phases[base].quantile(0.5);
  }
};

Results measure(const Options& options) {
  const std::size_t d = options.d;
  const gtopk::sparse::SelectorRow& selector =
      gtopk::sparse::selector_registry().find(options.select);
  const std::size_t k = selector.per_block
                            ? gtopk::selection_size(d, options.density, options.block)
                            : gtopk::selection_size(d, options.density);
  std::mt19937_64 random(options.seed);
  std::normal_distribution<float> normal;
  const Floats gradient(d);
  const Floats tensor(d);
  const Floats residual(d);
  const Floats copy(d);
  const Floats second_copy(d);
  std::generate_n(gradient.get(), d, [&] { return normal(random); });
  std::generate_n(residual.get(), d, [&] { return normal(random); });

  List own(selector.most_of(d, k));
  const List other = other_selection(d, k, random);
  List result(3 * k);
  List dropped(3 * k);
  gtopk::sparse::List own_list;
  own_list.indices = reinterpret_cast<std::byte*>(own.indices.data());
  own_list.values = reinterpret_cast<std::byte*>(own.values.data());
  gtopk::SelectorState state;
  gtopk::sparse::SelectScratch select_scratch;
  gtopk::sparse::MergeScratch merge_scratch;
  Results results{.k = k,
                  .phases = {{"memcpy", {}},
                             {"read", {}},
                             {"write", {}},
                             {"sweeps", {}},
                             {"select", {}},
                             {"commit", {}},
                             {"step", {}},
                             {"std::merge", {}},
                             {"merge", {}}}};
  const auto take = [&](Row row, int iteration, double sample) {
    if (iteration >= 0) {
      results.phases[row].samples.push_back(sample);
    }
  };
  const Pairs other_pairs = pairs_of(other);
  Pairs union_pairs(2 * own.indices.size() + other_pairs.size());
  volatile std::uint32_t seen = 0;
  for (int iteration = -options.warm_up; iteration < options.iterations; ++iteration) {
    std::memcpy(tensor.get(), gradient.get(), d * sizeof(float));  // part of backward: not timed
    take(kMemcpy, iteration,
         milliseconds([&] { std::memcpy(copy.get(), gradient.get(), d * sizeof(float)); }));
    const double read = milliseconds([&] { seen = read_both(tensor.get(), residual.get(), d); });
    const double write = milliseconds([&] {
      std::fill_n(copy.get(), d, 0.0F);
      std::fill_n(second_copy.get(), d, 0.0F);
    });
    take(kRead, iteration, read);
    take(kWrite, iteration, write);
    take(kSweeps, iteration, read + write);

    const double select = milliseconds([&] {
      const auto selection = selector.select({.tensor = tensor.get(),
                                              .residual = residual.get(),
                                              .d = d,
                                              .dtype = gtopk::DataType::kFloat32,
                                              .k = k,
                                              .entry = {},
                                              .density = options.density,
                                              .block = options.block,
                                              .state = state},
                                             own_list, select_scratch);
      own.size = selection.count;
      state = selection.next;
    });
    results.selected = own.size;
    const Pairs own_pairs = pairs_of(own);
    take(kStdMerge, iteration, milliseconds([&] {
           std::merge(own_pairs.begin(), own_pairs.end(), other_pairs.begin(), other_pairs.end(),
                      union_pairs.begin(),
                      [](const auto& left, const auto& right) { return left.first < right.first; });
         }));
    auto dropped_out = dropped.out();
    const double merge = milliseconds([&] {
      const auto merged = gtopk::sparse::merge(own.view(), other.view(), k, result.out(),
                                               &dropped_out, merge_scratch);
      result.size = merged.kept;
      dropped.size = merged.dropped;
    });
    const std::array dropped_lists{dropped.view()};
    const gtopk::sparse::StepLists<float, std::uint32_t> lists{
        .own = own.view(), .result = result.view(), .dropped = dropped_lists};
    const double commit = milliseconds([&] {
      gtopk::sparse::commit<float, float, std::uint32_t>(tensor.get(), residual.get(), d, lists,
                                                         2.0F);
    });
    take(kSelect, iteration, select);
    take(kCommit, iteration, commit);
    take(kStep, iteration, select + commit);
    take(kMerge, iteration, merge);
  }
  return results;
}

void print(const Options& options, const Results& results) {
  const std::int64_t simd = hwy::SupportedTargets() & HWY_TARGETS;  // the lowest bit is the best
  std::printf("# gtopk %s, compress step: select (%s) + compact + commit, float32 + residual\n",
              gtopk::kVersion, options.select.c_str());
  std::printf("# cpu %s, SIMD target %s, one thread, transparent huge pages %s\n",
              first_line_after("/proc/cpuinfo", "model name").c_str(),
              hwy::TargetName(simd & -simd),
              whole_line("/sys/kernel/mm/transparent_hugepage/enabled").c_str());
  std::printf("# d %zu, k %zu, selected at last %zu, density %g, seed %llu, warm-up %d left out\n",
              options.d, results.k, results.selected, options.density,
              static_cast<unsigned long long>(options.seed), options.warm_up);
  std::printf(
      "# memcpy: d floats; sweeps: one reads both arrays, one writes both; in turn with the "
      "step\n# ratio: median over memcpy's median\n");
  std::printf("%-10s %6s %10s %10s %10s %10s %8s\n", "phase", "iters", "min(ms)", "p50(ms)",
              "p99(ms)", "max(ms)", "ratio");
  const double reference = results.phases[kMemcpy].quantile(0.5);
  for (const Phase& phase : results.phases) {
    std::printf("%-10s %6zu %10.3f %10.3f %10.3f %10.3f %8.3f\n", phase.name.c_str(),
                phase.samples.size(), phase.quantile(0), phase.quantile(0.5), phase.quantile(0.99),
                phase.quantile(1), phase.quantile(0.5) / reference);
  }
  std::printf("# step over sweeps %.2f, merge over std::merge %.2f\n", results.over(kStep, kSweeps),
              results.over(kMerge, kStdMerge));
}

void write_json(const Options& options, const Results& results) {
  nlohmann::json document{{"benchmark", "compress"},
                          {"version", gtopk::kVersion},
                          {"d", options.d},
                          {"k", results.k},
                          {"select", options.select},
                          {"selected", results.selected},
                          {"density", options.density},
                          {"seed", options.seed},
                          {"unit", "ms"}};
  for (const Phase& phase : results.phases) {
    document["samples"][phase.name] = phase.samples;
  }
  document["step_over_memcpy"] = results.over(kStep, kMemcpy);
  document["step_over_sweeps"] = results.over(kStep, kSweeps);
  document["merge_over_std_merge"] = results.over(kMerge, kStdMerge);
  std::ofstream(options.json) << document.dump(1) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The compress step against memcpy, one thread");
  app.add_option("-d,--elements", options.d, "elements of the tensor")->check(CLI::PositiveNumber);
  app.add_option("--density", options.density, "share of the elements selected");
  std::vector<std::string> names;
  for (const gtopk::Choice& choice : gtopk::selectors()) {
    names.emplace_back(choice.name);
  }
  app.add_option("--select", options.select, "selector")->check(CLI::IsMember(names));
  app.add_option("--block", options.block, "elements per block, of the selector block")
      ->check(CLI::PositiveNumber);
  app.add_option("-n,--iterations", options.iterations)->check(CLI::PositiveNumber);
  app.add_option("-w,--warm-up", options.warm_up)->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed);
  app.add_option("--json", options.json, "file for the raw samples");
  CLI11_PARSE(app, argc, argv);
  const Results results = measure(options);
  print(options, results);
  if (!options.json.empty()) {
    write_json(options, results);
  }
  return 0;
}
