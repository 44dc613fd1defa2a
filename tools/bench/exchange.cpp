// Benchmark (b): gTop-k of preselected lists over a real network, one process per rank, against the
// limit of the link: alpha log2 P + bytes beta, with alpha and beta fitted by a ping-pong over the
// same backend in the same run.
//
// It is started on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set
// (tools/bench/run does that in a network lab). It prints `#` lines of provenance and aligned rows;
// exit code 1 if any rank's result differs from rank 0's.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtopk/communicator.hpp"
#include "gtopk/launch.hpp"
#include "gtopk_version.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::uint64_t d = 25'557'032;  // ResNet-50's parameters
  std::uint64_t k = 25'557;
  int exchanges = 200;
  int warm_up = 10;
  int in_flight = 1;
  int ping_pongs = 20;  // per size
  std::string algorithm = "gtopk";
  std::string wire = "lossless";
  std::string json;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<std::size_t>(q * static_cast<double>(samples.size() - 1) + 0.5)];
}

/// Starts one operation.
template <class Start>
std::future<void> begin(Start start) {
  auto ended = std::make_shared<std::promise<void>>();
  gtopk::Call call;
  call.done = [ended](const std::exception_ptr& error) {
    if (error) {
      ended->set_exception(error);
    } else {
      ended->set_value();
    }
  };
  std::future<void> future = ended->get_future();
  start(std::move(call));
  return future;
}

/// Starts one operation and waits for it.
template <class Start>
void run(Start start) {
  begin(std::move(start)).get();
}

/// The time of one way between ranks 0 and 1: seconds = alpha + bytes * beta.
struct Link {
  double alpha = 0;
  double beta = 0;
  std::vector<std::pair<double, double>> points;  // bytes, seconds
};

/// alpha is the smallest message's time. beta is the slope over the large messages, by least
/// squares, because on a shaped link small messages pass within its bucket, faster than its wire.
void fit(Link& link) {
  constexpr double kLarge = 65536;
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [x, y] : link.points) {
    if (x < kLarge) {
      continue;
    }
    n += 1;
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  link.beta = (n * sxy - sx * sy) / (n * sxx - sx * sx);
  link.alpha = link.points.front().second;
}

Link measure_link(gtopk::Communicator& group, const Arguments& arguments) {
  Link link;
  const std::vector<std::size_t> sizes{64,     1024,   4096,   16384, 65536,
                                       131072, 204520, 409000, 818000};
  std::vector<std::byte> buffer(sizes.back());
  for (const std::size_t size : sizes) {
    const std::span<std::byte> data(buffer.data(), size);
    std::vector<double> samples;
    for (int i = 0; i < arguments.ping_pongs && group.rank() < 2; ++i) {
      const auto start = Clock::now();
      const auto send = [&] {
        run([&](gtopk::Call call) {
          group.run(gtopk::send(data, 1 - group.rank(), 0), std::move(call));
        });
      };
      const auto recv = [&] {
        run([&](gtopk::Call call) {
          group.run(gtopk::recv(data, 1 - group.rank(), 0), std::move(call));
        });
      };
      if (group.rank() == 0) {
        send();
        recv();
      } else {
        recv();
        send();
      }
      if (i >= 2) {
        samples.push_back(seconds_since(start) / 2);
      }
    }
    if (!samples.empty()) {
      link.points.emplace_back(static_cast<double>(size), quantile(samples, 0.5));
    }
    run([&](gtopk::Call call) { group.run(gtopk::barrier(), std::move(call)); });
  }
  if (!link.points.empty()) {
    fit(link);
  }
  return link;
}

struct Result {
  explicit Result(std::uint64_t capacity) : indices(capacity), values(capacity) {}
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::uint64_t count = 0;
};

std::uint64_t checksum(const Result& result) {
  std::uint64_t sum = 1469598103934665603ULL + result.count;
  for (std::uint64_t i = 0; i < result.count; ++i) {
    for (const std::uint32_t word :
         {result.indices[i], std::bit_cast<std::uint32_t>(result.values[i])}) {
      sum = (sum ^ word) * 1099511628211ULL;
    }
  }
  return sum;
}

int measure(const Arguments& arguments) {
  const auto environment = gtopk::launch_environment();
  const auto directory =
      gtopk::directory_over(gtopk::join_rendezvous(environment, std::chrono::seconds(60)));
  const auto process = gtopk::Process::start();
  const std::uint32_t rank = environment.rank;
  const std::uint32_t ranks = environment.world_size;
  gtopk::Communicator group(process, {.directory = directory,
                                      .name = "bench",
                                      .rank = rank,
                                      .size = ranks,
                                      .timeout = std::chrono::minutes(5)});

  // Indices are distinct and values heavy-tailed, as in selections of real gradients.
  std::mt19937_64 random(1 + rank);
  std::set<std::uint32_t> chosen;
  while (chosen.size() < arguments.k) {
    chosen.insert(static_cast<std::uint32_t>(random() % arguments.d));
  }
  const std::vector<std::uint32_t> indices(chosen.begin(), chosen.end());
  std::student_t_distribution<float> heavy(3);
  std::vector<float> values(indices.size());
  for (float& value : values) {
    value = heavy(random);
  }

  gtopk::SparseOptions options;
  options.k = arguments.k;
  options.algorithm = arguments.algorithm;
  options.wire = arguments.wire;
  const std::uint64_t capacity = options.algorithm == "topk" ? arguments.k * ranks : arguments.k;
  std::vector<Result> results(static_cast<std::size_t>(arguments.in_flight), Result(capacity));
  const auto exchange = [&](Result& result) {
    const gtopk::Preselected entries{indices, values, result.indices, result.values, &result.count};
    return begin([&](gtopk::Call call) {
      group.run(gtopk::exchange(entries, arguments.d, options), std::move(call));
    });
  };

  const Link link = measure_link(group, arguments);
  for (int i = 0; i < arguments.warm_up; ++i) {
    exchange(results[0]).get();
  }
  run([&](gtopk::Call call) { group.run(gtopk::barrier(), std::move(call)); });
  const gtopk::Statistics before = group.statistics();
  const double cpu_before = cpu_seconds();
  std::vector<double> samples;
  const auto start = Clock::now();
  std::deque<std::pair<std::future<void>, Clock::time_point>> under_way;
  for (int i = 0; i < arguments.exchanges; ++i) {
    const auto begun = Clock::now();
    under_way.emplace_back(exchange(results[static_cast<std::size_t>(i) % results.size()]), begun);
    while (!under_way.empty() &&
           (under_way.size() == results.size() || i + 1 == arguments.exchanges)) {
      under_way.front().first.get();
      samples.push_back(seconds_since(under_way.front().second));
      under_way.pop_front();
    }
  }
  const double total = seconds_since(start);
  const double cpu = cpu_seconds() - cpu_before;
  const gtopk::Statistics after = group.statistics();

  std::vector<std::uint64_t> sums(ranks);
  sums[rank] = checksum(results.back());
  std::vector<std::span<std::byte>> buffers;
  buffers.reserve(sums.size());
  for (std::uint64_t& sum : sums) {
    buffers.push_back(std::as_writable_bytes(std::span(&sum, 1)));
  }
  run([&](gtopk::Call call) { group.run(gtopk::all_gather(buffers), std::move(call)); });
  const auto wrong =
      std::count_if(sums.begin(), sums.end(), [&](auto sum) { return sum != sums[0]; });

  if (rank == 0) {
    const auto n = static_cast<double>(arguments.exchanges);
    const double bytes = static_cast<double>(after.bytes_sent - before.bytes_sent) / n;
    const double messages = static_cast<double>(after.messages_sent - before.messages_sent) / n;
    const double rounds = std::log2(static_cast<double>(std::bit_ceil(ranks)));
    const double model = link.alpha * rounds + bytes * link.beta;
    const double mean = total / n;
    std::printf("# gtopk %s, exchange of preselected lists, algorithm %s, wire %s\n",
                gtopk::kVersion, arguments.algorithm.c_str(), arguments.wire.c_str());
    std::printf("# %s\n", process->transport().c_str());
    std::printf(
        "# %u ranks, d %llu, k %llu, %d exchanges back to back, %d in flight; link: alpha %.1f us, "
        "beta %.3f "
        "ns/B\n",
        ranks, static_cast<unsigned long long>(arguments.d),
        static_cast<unsigned long long>(arguments.k), arguments.exchanges, arguments.in_flight,
        link.alpha * 1e6, link.beta * 1e9);
    std::printf("%6s %12s %9s %9s %9s %9s %9s %9s %9s %10s %7s\n", "ranks", "bytes_sent",
                "messages", "min(ms)", "p50(ms)", "p99(ms)", "mean(ms)", "model(ms)", "mean/mod",
                "cpu(ms)", "#wrong");
    std::printf("%6u %12.0f %9.1f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %10.3f %7td\n", ranks, bytes,
                messages, quantile(samples, 0) * 1e3, quantile(samples, 0.5) * 1e3,
                quantile(samples, 0.99) * 1e3, mean * 1e3, model * 1e3, mean / model, cpu / n * 1e3,
                wrong);
    if (!arguments.json.empty()) {
      const nlohmann::json record{{"ranks", ranks},
                                  {"in_flight", arguments.in_flight},
                                  {"alpha_seconds", link.alpha},
                                  {"beta_seconds", link.beta},
                                  {"link", link.points},
                                  {"samples_seconds", samples},
                                  {"mean_seconds", mean},
                                  {"model_seconds", model},
                                  {"ratio", mean / model},
                                  {"bytes_sent", bytes},
                                  {"messages_sent", messages},
                                  {"cpu_seconds", cpu / n},
                                  {"wrong", wrong}};
      std::ofstream(arguments.json) << record.dump(2) << '\n';
    }
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"gTop-k of preselected lists against alpha log2 P + bytes beta of the link"};
  app.add_option("-d,--elements", arguments.d, "elements of the gradient")->capture_default_str();
  app.add_option("-k,--selected", arguments.k, "entries per rank")->capture_default_str();
  app.add_option("-n,--exchanges", arguments.exchanges, "measured, back to back")
      ->capture_default_str();
  app.add_option("-f,--in-flight", arguments.in_flight,
                 "begun before the oldest must have ended, as the DDP hook does with its units")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("-w,--warm-up", arguments.warm_up, "not measured, first")->capture_default_str();
  app.add_option("-a,--algorithm", arguments.algorithm, "gtopk, gtopk-tree, topk, rs-ag or exact")
      ->check(CLI::IsMember({"gtopk", "gtopk-tree", "topk", "rs-ag", "exact"}))
      ->capture_default_str();
  app.add_option("--wire", arguments.wire, "how lists travel: raw, lossless, bf16, …")
      ->capture_default_str();
  app.add_option("--json", arguments.json, "write samples and figures to this file (rank 0)");
  CLI11_PARSE(app, argc, argv);
  try {
    return measure(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gtopk-bench-exchange: %s\n", error.what());
    return 2;
  }
}
