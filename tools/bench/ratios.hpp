// Benchmarks of single functions, on Google Benchmark. Figures are ratios within one run. Each
// repetition is one timed pass, and ratios.cpp lets the repetitions of all benchmarks take turns at
// random, so that the medians it divides were measured under the same conditions. Reading Google
// Benchmark's clocks adds about a microsecond to a pass.
#pragma once

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

/// Registers the benchmarks; each program defines it.
void add_benchmarks();

/// Registers `body`, which prepares and then runs a loop over the state. `beside` names the
/// benchmarks with whose medians the table compares it, separated by spaces. `units` is the number
/// of elements, entries or bytes in one of the `passes` of the loop.
template <class Body>
void add(const std::string& name, const std::string& beside, std::size_t units, const Body& body,
         std::size_t passes = 1) {
  const auto run = [beside, units, body](benchmark::State& state) {
    body(state);
    state.SetLabel(beside);
    state.counters["each"] = benchmark::Counter(
        static_cast<double>(units),
        benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  };
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Iterations(static_cast<benchmark::IterationCount>(passes))
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

/// Registers a memcpy of that many bytes, with which others are compared.
inline void add_copy(const std::string& name, std::size_t units, std::size_t bytes,
                     std::size_t passes = 1) {
  const auto copy = [bytes](benchmark::State& state) {
    std::vector<std::byte> both(2 * bytes);
    for (auto _ : state) {
      std::memcpy(both.data() + bytes, both.data(), bytes);
      benchmark::ClobberMemory();
    }
  };
  add(name, "", units, copy, passes);
}
