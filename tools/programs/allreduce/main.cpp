// gtopk-allreduce: measures how long a sparse all-reduce takes, by size, algorithm, selector, wire
// and type, on the ranks of a job, without Python or torch. Rank 0 prints.
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "gtopk_version.hpp"
#include "tools/programs/allreduce/check.hpp"
#include "tools/programs/allreduce/measure.hpp"
#include "tools/programs/allreduce/options.hpp"
#include "tools/programs/allreduce/report.hpp"
#include "tools/programs/allreduce/subject.hpp"
#include "tools/programs/placement.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs::allreduce {
namespace {

/// Describes where this rank's tensors are and what is done there.
std::string about(const Device& device) {
  return fmt::format("{}: {}", device.gpu.name(),
                     device.kernels != nullptr
                         ? "selects, sums and commits, where the column place says device"
                         : "no kernels (GTOPK_CUDA_KERNELS): all is copied to the host and back");
}

std::vector<std::string> provenance(Job& job, const Options& options, const Settings& settings,
                                    const Device* device) {
  std::vector<std::string> lines = {
      fmt::format("gtopk {}, gtopk-allreduce", kVersion), job.transport(),
      fmt::format("{}; {} cores here", described_hosts(job, job.group().hosts()),
                  sysconf(_SC_NPROCESSORS_ONLN)),
      fmt::format("op {}, put_back {}, {} steps to warm up; t: a step on its slowest rank, p50; "
                  "GB = 1e9 bytes",
                  options.op, options.put_back, options.warm_up),
      options.check ? "#wrong: elements of tensors and residuals that are not the sequential "
                      "reference's"
                    : "#wrong: ranks whose tensor is not rank 0's (--check compares elements)"};
  if (device != nullptr) {
    lines.push_back(about(*device));
  }
  if (options.topology) {
    for (const std::string& one : placements(job)) {
      lines.push_back(one);
    }
  }
  for (const std::string& one : settings.left_out) {
    lines.push_back("left out: " + one);
  }
  return lines;
}

int run(const Options& options) {
  const Settings settings = allreduce::settings(options);
  const LaunchEnvironment environment = launched(options.job);
  const bool prints = environment.rank == 0;
  const JsonFile json(prints ? options.json : std::string());
  const std::chrono::nanoseconds timeout = timeout_of(options.job);
  std::optional<Device> gpu;
  if (options.memory == "cuda") {
    if (environment.world_size > 1) {
      name_in_errors(fmt::format("rank {}", environment.rank));
    }
    gpu.emplace(environment.local_rank.value_or(environment.rank));
  }
  const Device* const device = gpu ? &*gpu : nullptr;
  Job job(environment, timeout, join(environment, timeout));
  job.check_alike(shared_words(options));
  if (device != nullptr) {
    job.use(device->gpu);
  }

  Report report(options);
  const std::vector<std::string> lines = provenance(job, options, settings, device);  // collective
  bool read = !prints || report.begin(lines);
  PlanReport plan;
  std::uint64_t wrong = 0;
  for (const Setting& setting : settings.rows) {
    if (!job.agree(read)) {
      return kFine;
    }
    Row row{.setting = setting, .measured = {}};
    row.model = predicted(job, setting, plan);
    row.automatic = plan.reason;
    if (options.check) {
      const Verdict verdict = check(job, setting, device);
      row.wrong = verdict.wrong;
      row.mass_error = verdict.mass_error;
    }
    row.measured = measure(job, setting, options, device);
    const std::uint64_t differ = ranks_that_differ(job, row.measured.checksum);
    if (!options.check) {
      row.wrong = differ;
    }
    wrong += row.wrong + differ;
    if (prints) {
      read = report.add(row);
    }
  }
  if (prints) {
    static_cast<void>(report.end(plan.costs));
    json.write(report.json());
  }
  job.barrier();
  return wrong == 0 ? kFine : kFailed;
}

}  // namespace
}  // namespace gtopk::programs::allreduce

int main(int argc, char** argv) {
  CLI::App app("Times the sparse all-reduce on the ranks of a job.", "gtopk-allreduce");
  gtopk::programs::allreduce::Options options;
  gtopk::programs::allreduce::add_options(app, options);
  return gtopk::programs::run_program(app, argc, argv,
                                      [&] { return gtopk::programs::allreduce::run(options); });
}
