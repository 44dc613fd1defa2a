// The main function of all benchmarks on Google Benchmark, and their table: each median over the
// repetitions, its ratios to the benchmarks with which it is compared, and the time per unit. It
// takes Google Benchmark's options; --benchmark_out=FILE writes every repetition as JSON.
#include "tools/bench/ratios.hpp"

#include <fmt/format.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <vector>

#include "gtopk_version.hpp"

namespace {

class Medians final : public benchmark::ConsoleReporter {
 public:
  Medians() : ConsoleReporter(OO_None) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    for (Run run : runs) {
      failed_ |= run.error_occurred;
      if (run.error_occurred || run.repetitions < 2 || run.aggregate_name == "median") {
        run.run_type = Run::RT_Iteration;  // so that the name has no common suffix
        run.run_name.iterations.clear();
        run.run_name.repetitions.clear();
        run.run_name.time_type.clear();
        medians_.push_back(run);
      }
    }
  }

  void Finalize() override {
    std::ranges::sort(medians_, {}, &Run::family_index);
    std::map<std::string, double> times;
    for (const Run& run : medians_) {
      times[run.benchmark_name()] = run.GetAdjustedRealTime();
    }
    for (Run& run : medians_) {
      std::istringstream names(run.report_label);
      run.report_label.clear();
      for (std::string name; names >> name;) {
        if (times.contains(name)) {
          run.report_label +=
              fmt::format("{:.2f} x {}  ", run.GetAdjustedRealTime() / times[name], name);
        }
      }
    }
    ConsoleReporter::ReportRuns(medians_);
  }

  [[nodiscard]] bool failed() const { return failed_; }

 private:
  std::vector<Run> medians_;
  bool failed_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  std::string turns = "--benchmark_enable_random_interleaving=true";
  std::string repetitions = "--benchmark_repetitions=31";
  std::vector<char*> arguments{argv[0], turns.data(), repetitions.data()};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) {
    return 1;
  }
  const std::int64_t simd = hwy::SupportedTargets() & HWY_TARGETS;  // the lowest bit is the best
  benchmark::AddCustomContext("gtopk", gtopk::kVersion);
  benchmark::AddCustomContext("SIMD target", hwy::TargetName(simd & -simd));
  add_benchmarks();
  Medians medians;
  benchmark::RunSpecifiedBenchmarks(&medians);
  return medians.failed() ? 1 : 0;
}
