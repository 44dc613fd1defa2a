// Benchmark (h): the count-sketch of `sketch`, on one thread: adding a vector to a sketch, and
// finding the heaviest elements in it, beside a memcpy of the vector; and the percentage of the
// true top k that is among the heaviest, by count and by sum of squares, for values with Student's
// t distribution. Names are d, degrees of freedom, columns / k and heaviest / k.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "src/gtopk/algorithms/count_sketch.hpp"
#include "src/gtopk/algorithms/unsketch.hpp"
#include "tools/bench/ratios.hpp"

namespace {

using gtopk::sparse::CountSketch;
using gtopk::sparse::FixedPoint;

constexpr double kDensity = 0.001;

std::vector<float> values_of(std::size_t d, double freedom) {
  std::mt19937_64 random(1);
  std::student_t_distribution<float> heavy(static_cast<float>(freedom));
  std::vector<float> values(d);
  std::ranges::generate(values, [&] { return heavy(random); });
  return values;
}

/// Returns the k-th largest magnitude.
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

struct Cells {
  explicit Cells(const CountSketch& sketch) : numbers(sketch.cells()), values(sketch.cells()) {}
  std::vector<std::uint64_t> numbers;
  std::vector<float> values;
};

void add_to(const CountSketch& sketch, const std::vector<float>& values, Cells& cells) {
  const std::size_t d = values.size();
  gtopk::sparse::Key<float> largest = 0;
  for (const float value : values) {
    largest = std::max(largest, gtopk::sparse::magnitude_key(value));
  }
  const auto point = FixedPoint::of<float>(largest, d);
  std::ranges::fill(cells.numbers, 0U);
  for (std::size_t row = 0; row < CountSketch::kRows; ++row) {
    std::uint64_t* const of_row = cells.numbers.data() + row * sketch.columns();
    for (std::size_t begin = 0; begin < d; begin += CountSketch::kStretch) {
      const std::size_t length = std::min(CountSketch::kStretch, d - begin);
      sketch.add(row, begin, std::span<const float>(&values[begin], length), point, of_row);
    }
  }
  std::ranges::transform(cells.numbers, cells.values.begin(),
                         [&](std::uint64_t number) { return point.value<float>(number); });
}

/// Reports which part of the true top k the k largest of the heaviest deliver.
void count_found(benchmark::State& state, const std::vector<float>& values, std::size_t k,
                 const std::vector<float>& heaviest) {
  const float least = threshold(values, k);
  const auto hits =
      std::ranges::count_if(heaviest, [least](float value) { return std::fabs(value) >= least; });
  const float delivered = heaviest.size() < k ? 0 : threshold(heaviest, k);
  state.counters["found_percent"] = 100 * static_cast<double>(hits) / static_cast<double>(k);
  state.counters["squares_percent"] =
      100 * squares_from(heaviest, delivered) / squares_from(values, least);
}

void add_sketch(std::size_t d, double freedom, std::size_t columns, std::size_t heavy) {
  const std::size_t k = gtopk::selection_size(d, kDensity);
  const std::string prefix = fmt::format("{}/{}/{}/{}/", d, freedom, columns, heavy);
  const std::string copy = fmt::format("{}/copy", d);
  add(prefix + "add", copy, d, [=](benchmark::State& state) {
    const std::vector<float> values = values_of(d, freedom);
    const CountSketch sketch(0, columns * k);
    Cells cells(sketch);
    for (auto _ : state) {
      add_to(sketch, values, cells);
    }
  });
  add(prefix + "find", copy, d, [=](benchmark::State& state) {
    const std::vector<float> values = values_of(d, freedom);
    const CountSketch sketch(0, columns * k);
    Cells cells(sketch);
    add_to(sketch, values, cells);
    std::vector<std::uint32_t> indices(heavy * k);
    std::vector<float> estimates(heavy * k);
    gtopk::sparse::SelectScratch scratch;
    std::size_t found = 0;
    for (auto _ : state) {
      found = gtopk::sparse::unsketch<float, std::uint32_t>(
          sketch, cells.values.data(), d, heavy * k, {indices.data(), estimates.data()}, scratch);
    }
    std::vector<float> heaviest(found);
    std::ranges::transform(std::span(indices).first(found), heaviest.begin(),
                           [&](std::uint32_t index) { return values[index]; });
    count_found(state, values, k, heaviest);
  });
}

}  // namespace

void add_benchmarks() {
  constexpr std::size_t kResNet = 25'557'032;  // ResNet-50's parameters
  constexpr std::size_t kSmaller = 10'000'000;
  add_copy(fmt::format("{}/copy", kResNet), kResNet, kResNet * sizeof(float));
  add_sketch(kResNet, 2, 10, 8);
  add_copy(fmt::format("{}/copy", kSmaller), kSmaller, kSmaller * sizeof(float));
  for (const auto& [columns, heavy] : {std::pair{5, 4}, {10, 4}, {10, 8}, {20, 8}}) {
    for (const double freedom : {1000.0, 3.0, 2.0, 1.5}) {
      add_sketch(kSmaller, freedom, static_cast<std::size_t>(columns),
                 static_cast<std::size_t>(heavy));
    }
  }
}
