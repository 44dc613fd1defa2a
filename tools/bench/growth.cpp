// Benchmark (l): how each algorithm scales with the number of ranks. It shows the predictions of
// the model in docs/algorithms.md for up to thousands of ranks, beside real exchanges of up to 64
// ranks over the in-process transport in virtual time, whose links have the same alpha and beta.
// Computing takes no virtual time, so these exchanges are compared with the model's figure for the
// links alone.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "gtopk/collectives.hpp"
#include "gtopk_version.hpp"
#include "src/collectives/routes.hpp"
#include "src/engine/compute.hpp"
#include "src/engine/engine.hpp"
#include "src/engine/group.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "src/gtopk/plan/arithmetic.hpp"
#include "src/transport/base/log.hpp"
#include "tests/transport/inproc/fabric.hpp"

namespace {

using gtopk::Costs;
using gtopk::DataType;
using gtopk::LinkCosts;
namespace collectives = gtopk::collectives;
namespace engine = gtopk::engine;
namespace inproc = gtopk::transport::inproc;
namespace sparse = gtopk::sparse;
using gtopk::transport::Duration;
using gtopk::transport::TimePoint;

struct Options {
  std::uint64_t d = 1'000'000;
  std::uint64_t k = 1'000;
  std::string wire = "lossless";
  std::uint32_t each = 1;
  bool in_turn = false;
  std::uint32_t most = 4096;
  std::uint32_t measured = 64;
  std::vector<double> within = {1, 0.25};    ///< microseconds, nanoseconds per byte
  std::vector<double> between = {31, 83.8};  ///< the lab at 100 Mbit/s (docs/lab.md)
  std::vector<std::string> algorithms;
  bool preselected = false;
  std::string json;
};

std::vector<std::string> hosts_of(std::uint32_t ranks, const Options& options) {
  std::vector<std::string> names;
  names.reserve(ranks);
  const std::uint32_t hosts = (ranks + options.each - 1) / options.each;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    names.push_back(std::to_string(options.in_turn ? rank % hosts : rank / options.each));
  }
  return names;
}

/// Links in virtual time. Each host's link and, inside hosts, each rank's link carry one message
/// after the other in each direction. A message that waits at its receiver's link does not block
/// the sender's.
class Links {
 public:
  Links(std::vector<std::string> hosts, const Costs& costs, const inproc::Fabric& fabric)
      : map_(hosts),
        costs_(costs),
        fabric_(fabric),
        of_hosts_(map_.hosts()),
        of_ranks_(map_.ranks()) {}

  Duration take(const inproc::Sent& sent) {
    const std::uint32_t from = map_.host_of(sent.source);
    const std::uint32_t to = map_.host_of(sent.destination);
    return from == to ? pass(of_ranks_[sent.source].out, of_ranks_[sent.destination].in, sent.bytes,
                             costs_.within)
                      : pass(of_hosts_[from].out, of_hosts_[to].in, sent.bytes, costs_.between);
  }

 private:
  /// The times at which a link becomes free.
  struct Ends {
    TimePoint out;
    TimePoint in;
  };

  [[nodiscard]] Duration pass(TimePoint& out, TimePoint& in, std::size_t bytes,
                              const LinkCosts& costs) const {
    const TimePoint now = fabric_.clock().now();
    const Duration taken = nanoseconds(static_cast<double>(bytes) * costs.byte);
    const TimePoint leaves = std::max(now, out);
    out = leaves + taken;
    in = std::max(leaves, in) + taken;
    return in - now + nanoseconds(costs.message);
  }
  static Duration nanoseconds(double count) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::nano>(count));
  }

  engine::HostMap map_;
  Costs costs_;
  const inproc::Fabric& fabric_;
  std::vector<Ends> of_hosts_;
  std::vector<Ends> of_ranks_;
};

/// One rank's call and its data.
class Input {
 public:
  explicit Input(std::uint32_t ranks, const std::string& algorithm, const Options& options,
                 std::mt19937_64& random)
      : d_(options.d),
        lists_({.k = options.k, .algorithm = algorithm, .wire = options.wire}),
        preselected_(options.preselected) {
    if (preselected_) {
      std::set<std::uint32_t> chosen;
      while (chosen.size() < options.k) {
        chosen.insert(static_cast<std::uint32_t>(random() % d_));
      }
      indices_.assign(chosen.begin(), chosen.end());
      // This is the capacity for any algorithm; most return at most k entries.
      result_indices_.resize(options.k * ranks);
      result_values_.resize(options.k * ranks);
    }
    values_.resize(preselected_ ? options.k : d_);
    for (float& value : values_) {
      value = static_cast<float>(static_cast<std::int64_t>(random())) * 0x1p-63F;
    }
  }

  [[nodiscard]] gtopk::Collective collective() {
    if (preselected_) {
      const gtopk::Preselected entries{indices_, values_, result_indices_, result_values_, &count_};
      return gtopk::exchange(entries, d_, lists_);
    }
    sparse::SparseCall call;
    call.tensor = sparse::Segments<void>(values_.data());
    call.d = d_;
    call.options = lists_;
    return sparse::collective(call);
  }
  [[nodiscard]] bool has_the_result_of(const Input& other) const {
    return preselected_ ? count_ == other.count_ && result_indices_ == other.result_indices_ &&
                              result_values_ == other.result_values_
                        : values_ == other.values_;
  }

 private:
  std::uint64_t d_;
  gtopk::SparseOptions lists_;
  bool preselected_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;  // values of the entries, or all values, and then the result
  std::vector<std::uint32_t> result_indices_;
  std::vector<float> result_values_;
  std::uint64_t count_ = 0;
};

/// Returns the virtual seconds from the call to its end on the last rank.
double run_in_virtual_time(std::uint32_t ranks, const std::string& algorithm, const Costs& costs,
                           const Options& options) {
  const std::vector<std::string> hosts = hosts_of(ranks, options);
  inproc::Fabric fabric(ranks, {.eager_below = SIZE_MAX, .reorder = false});
  Links links(hosts, costs, fabric);
  fabric.set_faults(
      [&](const inproc::Sent& sent) { return inproc::Fault{.delay = links.take(sent)}; });
  engine::InlineExecutor executor;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  engine::GroupSpec spec;
  spec.name = "default";
  spec.hosts = hosts;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    engines.push_back(
        std::make_unique<engine::Engine>(fabric.port(rank), fabric.clock(), executor));
    spec.cards.push_back(fabric.port(rank).address());
    spec.ids.push_back(engines[rank]->reserve_group_id());
  }

  std::mt19937_64 random(1);
  std::deque<Input> inputs;
  std::vector<std::shared_ptr<engine::Group>> groups;
  std::uint32_t ended = 0;
  std::exception_ptr failure;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(ranks, algorithm, options, random);
    spec.rank = rank;
    groups.push_back(engines[rank]->add_group(spec));
    engine::OperationSpec operation(inputs.back().collective());
    operation.timeout = std::chrono::hours(1);
    operation.done = [&](const std::exception_ptr& error) {
      ++ended;
      if (error) {
        failure = error;
      }
    };
    engines[rank]->submit(groups[rank], std::move(operation));
  }
  const TimePoint begin = fabric.clock().now();
  while (ended < ranks && !failure) {
    bool moved = fabric.deliver_one();
    for (const auto& each : engines) {
      moved |= each->step() != engine::Engine::Step::kNothing;
    }
    if (!moved && !fabric.advance_to_next()) {
      throw std::runtime_error("nothing is left to happen");
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  const double seconds = std::chrono::duration<double>(fabric.clock().now() - begin).count();
  for (const Input& input : inputs) {
    if (!input.has_the_result_of(inputs.front())) {
      throw std::runtime_error("ranks have different results");
    }
  }
  return seconds;
}

struct Row {
  std::string algorithm;
  std::uint32_t ranks = 1;
  sparse::Work work;
  sparse::Nanoseconds price;
  std::optional<double> measured;

  [[nodiscard]] double links() const { return (price.latency + price.transfer) * 1e-9; }
};

/// Returns the work without the parts that preselected lists save: selecting, and writing the
/// result back.
sparse::Work of_lists(sparse::Work work) {
  work.selected = work.picked = work.committed = work.applied = 0;
  return work;
}

std::vector<Row> rows_of(std::uint32_t ranks, const Costs& costs, const Options& options) {
  const collectives::Routes routes{engine::HostMap(hosts_of(ranks, options))};
  std::vector<Row> rows;
  for (const gtopk::Choice& choice : gtopk::algorithms()) {
    const sparse::AlgorithmRow& algorithm = sparse::algorithm_registry().find(choice.name);
    const bool wanted =
        options.algorithms.empty() ||
        std::ranges::find(options.algorithms, choice.name) != end(options.algorithms);
    if (algorithm.cost == nullptr || !wanted) {
      continue;
    }
    sparse::CriticalPath path({.routes = &routes,
                               .d = options.d,
                               .k = options.k,
                               .type = {DataType::kFloat32, 4},
                               .codec = &sparse::codec_registry().find(options.wire).codec});
    algorithm.cost(path);
    const sparse::Work work = options.preselected ? of_lists(path.work()) : path.work();
    Row row{std::string(choice.name), ranks, work, price(work, costs), {}};
    if (ranks > 1 && ranks <= options.measured) {
      row.measured = run_in_virtual_time(ranks, row.algorithm, costs, options);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void run(const Options& options) {
  gtopk::transport::log().set_level(gtopk::transport::LogLevel::kOff);
  Costs costs;
  costs.within = {options.within.at(0) * 1e3, options.within.at(1)};
  costs.between = {options.between.at(0) * 1e3, options.between.at(1)};
  sparse::measure_arithmetic(costs);
  nlohmann::json record{{"program", "gtopk-bench-growth"},
                        {"version", gtopk::kVersion},
                        {"d", options.d},
                        {"k", options.k},
                        {"wire", options.wire},
                        {"ranks_per_host", options.each},
                        {"in_turn", options.in_turn},
                        {"preselected", options.preselected},
                        {"rows", nlohmann::json::array()}};
  fmt::print(
      "# d {}, k {}{}, {}, {} ranks a host{}; within: {} us, {} ns/B; between: {} us, {} ns/B\n",
      options.d, options.k, options.preselected ? " preselected" : "", options.wire, options.each,
      options.in_turn ? " in turn" : "", options.within[0], options.within[1], options.between[0],
      options.between[1]);
  fmt::print(
      "# ns an element: select {:.2f}, add {:.2f}, commit {:.2f}; an entry: code {:.1f}, "
      "merge {:.1f}, unite {:.1f}\n",
      costs.select, costs.add, costs.commit, costs.code, costs.merge, costs.unite);
  fmt::print("{:>6} {:>14} {:>12} {:>12} {:>12} {:>8}\n", "ranks", "algorithm", "model(ms)",
             "links(ms)", "virtual(ms)", "ratio");
  for (std::uint32_t ranks = 2; ranks <= options.most; ranks *= 2) {
    for (const Row& row : rows_of(ranks, costs, options)) {
      record["rows"].push_back({{"algorithm", row.algorithm},
                                {"ranks", ranks},
                                {"model_seconds", row.price.total() * 1e-9},
                                {"links_seconds", row.links()},
                                {"host_bytes", row.work.host_bytes},
                                {"virtual_seconds", nullptr}});
      if (row.measured) {
        record["rows"].back()["virtual_seconds"] = *row.measured;
      }
      const std::string there = row.measured ? fmt::format("{:12.3f} {:8.3f}", *row.measured * 1e3,
                                                           row.links() / *row.measured)
                                             : fmt::format("{:>12} {:>8}", "-", "-");
      fmt::print("{:6} {:>14} {:12.3f} {:12.3f} {}\n", ranks, row.algorithm,
                 row.price.total() * 1e-6, row.links() * 1e3, there);
    }
  }
  if (options.json.empty()) {
    return;
  }
  std::ofstream file(options.json);
  file << record.dump(1) << "\n";
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + options.json);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How each algorithm grows with the ranks: the model, and exchanges in virtual time"};
  Options options;
  app.add_option("-d", options.d, "elements")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("-k", options.k, "entries of a rank")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--wire", options.wire, "of the lists")->capture_default_str();
  app.add_option("--ranks-per-host", options.each, "neighbours, or --in-turn")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--in-turn", options.in_turn, "rank r is on host r mod hosts");
  app.add_option("--most", options.most, "ranks that are predicted")->capture_default_str();
  app.add_option("--measured", options.measured, "ranks that run in virtual time")
      ->capture_default_str();
  app.add_option("--within", options.within, "alpha (us) and beta (ns/B) inside a host")
      ->expected(2)
      ->capture_default_str();
  app.add_option("--between", options.between, "alpha (us) and beta (ns/B) between hosts")
      ->expected(2)
      ->capture_default_str();
  app.add_option("--algorithms", options.algorithms, "these only");
  app.add_flag("--preselected", options.preselected,
               "ranks exchange lists that they have; the model has neither selecting nor writing "
               "back");
  app.add_option("--json", options.json, "also write the rows to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "gtopk-bench-growth: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
