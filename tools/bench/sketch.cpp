// Benchmark (h): the count-sketch of `sketch`, on one thread: nanoseconds per element to add a
// vector to a sketch and to find the heaviest elements in it, next to a memcpy of the same vector
// in the same run; and which share of the true top k is among the heaviest, by count and by sum of
// squares, for values with Student's t distribution.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "gtopk/types.hpp"
#include "gtopk_version.hpp"
#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using gtopk::sparse::CountSketch;
using gtopk::sparse::FixedPoint;

struct Options {
  std::size_t d = 25'557'032;  // ResNet-50's parameters
  double density = 0.001;
  std::size_t columns_per_entry = 10;
  std::size_t heavy_per_entry = 8;
  double freedom = 2;
  int turns = 5;
};

template <class Work>
double nanoseconds(Work work) {
  const auto from = Clock::now();
  work();
  return std::chrono::duration<double, std::nano>(Clock::now() - from).count();
}

double median(std::vector<double> samples) {
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

/// The k-th largest magnitude.
float threshold(const std::vector<float>& values, std::size_t k) {
  std::vector<float> magnitudes(values.size());
  std::ranges::transform(values, magnitudes.begin(), [](float value) { return std::fabs(value); });
  const auto kth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
  return *kth;
}

double squares_from(const std::vector<float>& values, float least) {
  double sum = 0;
  for (const float value : values) {
    if (std::fabs(value) >= least) {
      sum += static_cast<double>(value) * value;
    }
  }
  return sum;
}

void measure(const Options& options) {
  const std::size_t k = gtopk::selection_size(options.d, options.density);
  const std::size_t most = options.heavy_per_entry * k;
  std::mt19937_64 random(1);
  std::student_t_distribution<float> heavy(static_cast<float>(options.freedom));
  std::vector<float> values(options.d);
  std::ranges::generate(values, [&] { return heavy(random); });
  std::vector<float> copy(options.d);
  std::vector<std::uint32_t> indices(most);
  std::vector<float> estimates(most);
  gtopk::sparse::SelectScratch scratch;
  std::vector<double> copying;
  std::vector<double> adding;
  std::vector<double> finding;
  std::size_t found = 0;
  for (int turn = -1; turn < options.turns; ++turn) {  // the first one is a warm-up
    const CountSketch sketch(static_cast<std::uint64_t>(turn + 1), options.columns_per_entry * k);
    std::vector<float> cells(sketch.cells());
    std::vector<std::uint64_t> numbers(sketch.cells());
    const double copied =
        nanoseconds([&] { std::memcpy(copy.data(), values.data(), options.d * sizeof(float)); });
    const double added = nanoseconds([&] {
      gtopk::sparse::Key<float> largest = 0;
      for (const float value : values) {
        largest = std::max(largest, gtopk::sparse::magnitude_key(value));
      }
      const auto point = FixedPoint::of<float>(largest, options.d);
      std::ranges::fill(numbers, 0U);
      for (std::size_t row = 0; row < CountSketch::kRows; ++row) {
        std::uint64_t* const of_row = numbers.data() + row * sketch.columns();
        for (std::size_t begin = 0; begin < options.d; begin += CountSketch::kStretch) {
          const std::size_t length = std::min(CountSketch::kStretch, options.d - begin);
          sketch.add(row, begin, std::span<const float>(&values[begin], length), point, of_row);
        }
      }
      std::ranges::transform(numbers, cells.begin(),
                             [&](std::uint64_t number) { return point.value<float>(number); });
    });
    const double unsketched = nanoseconds([&] {
      found = gtopk::sparse::unsketch<float, std::uint32_t>(
          sketch, cells.data(), options.d, most, {indices.data(), estimates.data()}, scratch);
    });
    if (turn < 0) {
      continue;
    }
    copying.push_back(copied);
    adding.push_back(added);
    finding.push_back(unsketched);
  }
  const float least = threshold(values, k);
  std::vector<float> of_heaviest(found);
  for (std::size_t i = 0; i < found; ++i) {
    of_heaviest[i] = values[indices[i]];
  }
  const auto hits = std::ranges::count_if(
      of_heaviest, [least](float value) { return std::fabs(value) >= least; });
  // The top k of the heaviest is delivered, however many of the true top k it contains.
  const float delivered = found < k ? 0 : threshold(of_heaviest, k);
  const auto d = static_cast<double>(options.d);
  std::printf("# gtopk %s, count-sketch: %zu rows of %zu k columns, %zu k heaviest, float32\n",
              gtopk::kVersion, CountSketch::kRows, options.columns_per_entry,
              options.heavy_per_entry);
  std::printf("# d %zu, k %zu, Student's t with %g degrees of freedom, one thread, %d turns\n",
              options.d, k, options.freedom, options.turns);
  std::printf("memcpy %.2f, add %.2f, find %.2f ns an element (medians)\n", median(copying) / d,
              median(adding) / d, median(finding) / d);
  std::printf("top k found %.3f, squares %.3f of the top k's\n",
              static_cast<double>(hits) / static_cast<double>(k),
              squares_from(of_heaviest, delivered) / squares_from(values, least));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The count-sketch of `sketch`, one thread");
  app.add_option("-d,--elements", options.d)->check(CLI::PositiveNumber);
  app.add_option("--density", options.density, "k / d")->check(CLI::PositiveNumber);
  app.add_option("--columns", options.columns_per_entry, "columns / k")->check(CLI::PositiveNumber);
  app.add_option("--heavy", options.heavy_per_entry, "p2")->check(CLI::PositiveNumber);
  app.add_option("--freedom", options.freedom, "degrees of freedom")->check(CLI::PositiveNumber);
  app.add_option("-n,--turns", options.turns)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  measure(options);
  return 0;
}
