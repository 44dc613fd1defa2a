#include "tools/programs/allreduce/measure.hpp"

#include <algorithm>
#include <chrono>
#include <memory>

#include "gtopk/collectives.hpp"

namespace gtopk::programs::allreduce {
namespace {

using Clock = std::chrono::steady_clock;

/// The amounts that the measured steps have added to the group's statistics.
struct Spent {
  void add(const Statistics& before, const Statistics& after) {
    bytes += static_cast<double>(after.bytes_sent - before.bytes_sent);
    select += after.compress_seconds - before.compress_seconds;
    exchange += after.exchange_seconds - before.exchange_seconds;
    commit += after.commit_seconds - before.commit_seconds;
  }
  double bytes = 0;
  double select = 0;
  double exchange = 0;
  double commit = 0;
};

std::vector<double> slowest(const std::vector<std::vector<double>>& by_rank) {
  std::vector<double> most = by_rank.front();
  for (const std::vector<double>& one : by_rank) {
    for (std::size_t i = 0; i < most.size(); ++i) {
      most[i] = std::max(most[i], one[i]);
    }
  }
  return most;
}

}  // namespace

Measurement measure(Job& job, const Setting& setting, const Options& options,
                    const Device* device) {
  const std::unique_ptr<Subject> measured_one = subject(job, setting, device);
  std::vector<double> mine;
  Spent spent;
  for (std::uint32_t step = 0; step < options.warm_up + options.steps; ++step) {
    measured_one->refill();
    job.barrier();
    const Statistics before = job.group().statistics();
    const auto begin = Clock::now();
    measured_one->step(job, setting.sparse.seed);
    const std::chrono::duration<double> taken = Clock::now() - begin;
    if (step < options.warm_up) {
      continue;
    }
    mine.push_back(taken.count());
    spent.add(before, job.group().statistics());
  }
  double total = 0;
  for (const double seconds : mine) {
    total += seconds;
  }
  Measurement measured{.seconds = slowest(job.gathered(mine)),
                       .select_share = spent.select / total,
                       .exchange_share = spent.exchange / total,
                       .commit_share = spent.commit / total,
                       .checksum = checksum(measured_one->fetched().values),
                       .place = measured_one->place()};
  for (const std::vector<double>& one : job.gathered(std::vector<double>{spent.bytes})) {
    measured.bytes_sent = std::max(measured.bytes_sent, one.front() / options.steps);
  }
  return measured;
}

std::optional<Prediction> predicted(Job& job, const Setting& setting, PlanReport& report) {
  job.run(plan(setting.n, setting.dtype, setting.sparse, report));
  for (const Prediction& prediction : report.predictions) {
    if (prediction.algorithm == setting.sparse.algorithm) {
      return prediction;
    }
  }
  return std::nullopt;
}

}  // namespace gtopk::programs::allreduce
