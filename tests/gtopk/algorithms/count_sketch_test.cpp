// Sparse, algorithms: the count-sketch alone: its hashes, that it is linear and unbiased, and
// what it finds.
#include "src/gtopk/algorithms/count_sketch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "tests/reference/reference_sketch.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

using reference::Random;

template <class Value>
FixedPoint point_of(const std::vector<Value>& values) {
  Key<Value> largest = 0;
  for (const Value value : values) {
    largest = std::max(largest, magnitude_key(value));
  }
  return FixedPoint::of<Value>(largest, values.size());
}

template <class Value>
std::vector<Value> values_of(const std::vector<std::uint64_t>& numbers, FixedPoint point) {
  std::vector<Value> cells(numbers.size());
  std::ranges::transform(numbers, cells.begin(),
                         [&](std::uint64_t number) { return point.value<Value>(number); });
  return cells;
}

template <class Value>
void add_to_rows(const CountSketch& sketch, std::uint64_t begin, std::span<const Value> values,
                 FixedPoint point, std::vector<std::uint64_t>& numbers) {
  for (std::size_t row = 0; row < CountSketch::kRows; ++row) {
    sketch.add(row, begin, values, point, numbers.data() + row * sketch.columns());
  }
}

template <class Value>
std::vector<Value> sketch_of(const CountSketch& sketch, const std::vector<Value>& values,
                             std::uint64_t begin = 0) {
  std::vector<std::uint64_t> numbers(sketch.cells());
  const FixedPoint point = point_of(values);
  for (std::size_t at = 0; at < values.size(); at += CountSketch::kStretch) {
    const std::size_t length = std::min(CountSketch::kStretch, values.size() - at);
    add_to_rows(sketch, begin + at, std::span<const Value>(&values[at], length), point, numbers);
  }
  return values_of<Value>(numbers, point);
}

template <class Value>
std::vector<Value> estimates_of(const CountSketch& sketch, const std::vector<Value>& cells,
                                std::size_t d, std::uint64_t begin = 0) {
  std::vector<Value> estimates(d);
  for (std::size_t at = 0; at < d; at += CountSketch::kStretch) {
    const std::size_t length = std::min(CountSketch::kStretch, d - at);
    sketch.estimate(cells.data(), begin + at, std::span<Value>(&estimates[at], length));
  }
  return estimates;
}

std::vector<double> whole_numbers(std::size_t d, Random& random) {
  std::vector<double> values(d);
  for (double& value : values) {
    value = static_cast<double>(random.below(2001)) - 1000;
  }
  return values;
}

// Each element swept alone and behind zeros in one stretch, up to the largest tensors.
TEST(CountSketch, PutsElementsWhereTheReferenceDoes) {
  for (const std::uint64_t seed : {0UL, 7UL, ~0UL}) {
    for (const std::uint64_t columns : {1UL, 10UL, 1000UL, 65537UL}) {
      const CountSketch sketch(seed, columns);
      ASSERT_EQ(sketch.cells(), 5 * columns);
      for (const std::uint64_t begin :
           {0UL, 1UL, 25'557'000UL, (1UL << 32U) - 2, (1UL << 40U) + 7, (1UL << 61U) - 3}) {
        for (std::uint64_t offset = 0; offset < 4; ++offset) {
          std::vector<float> values(offset + 1);
          values.back() = 3;
          std::vector<float> expected(sketch.cells());
          for (const reference::Place& place :
               reference::places_of(begin + offset, seed, columns)) {
            expected[place.cell] = place.minus ? -3.0F : 3.0F;
          }
          ASSERT_EQ(sketch_of(sketch, values, begin), expected) << begin << " + " << offset;
          ASSERT_EQ(estimates_of(sketch, expected, offset + 1, begin).back(), 3.0F);
        }
      }
    }
  }
}

// Known values: another machine, compiler or version must give the same.
TEST(CountSketch, GivesTheGoldenCells) {
  const std::vector<double> values = {1, 2, 4, 8, 16, 32, 64, 128};
  EXPECT_EQ(sketch_of(CountSketch(1, 4), values),
            (std::vector<double>{0,  6,   -1, 0, 63,  -124, 8,  -48, 68, 120,
                                 15, -34, 0,  1, -14, 16,   28, 7,   62, 144}));
}

TEST(CountSketch, OfASumIsTheSumOfTheSketches) {
  Random random(2);
  const CountSketch sketch(3, 50);
  const std::vector<double> left = whole_numbers(5000, random);
  const std::vector<double> right = whole_numbers(5000, random);
  std::vector<double> sum(left.size());
  std::ranges::transform(left, right, sum.begin(), std::plus<>());
  const std::vector<double> of_left = sketch_of(sketch, left);
  const std::vector<double> of_right = sketch_of(sketch, right);
  std::vector<double> cells(of_left.size());
  std::ranges::transform(of_left, of_right, cells.begin(), std::plus<>());
  EXPECT_EQ(sketch_of(sketch, sum), cells);
}

TEST(CountSketch, Cells_DependNeitherOnSplitNorOnOrder) {
  Random random(4);
  const CountSketch sketch(5, 30);
  std::vector<float> values(3000);
  for (float& value : values) {
    value = static_cast<float>(random.uniform() - 0.5);
  }
  std::vector<std::size_t> cuts = {0, values.size()};
  while (cuts.size() < 12) {
    cuts.push_back(random.below(values.size()));
  }
  std::ranges::sort(cuts);
  std::vector<std::uint64_t> numbers(sketch.cells());
  const FixedPoint point = point_of(values);
  for (std::size_t part = cuts.size() - 1; part > 0; --part) {  // the last one first
    for (std::size_t begin = cuts[part - 1]; begin < cuts[part]; begin += CountSketch::kStretch) {
      const std::size_t length = std::min(CountSketch::kStretch, cuts[part] - begin);
      add_to_rows(sketch, begin, std::span<const float>(&values[begin], length), point, numbers);
    }
  }
  EXPECT_EQ(values_of<float>(numbers, point), sketch_of(sketch, values));
}

TEST(CountSketch, KeepsSubnormals) {
  const CountSketch sketch(6, 10);
  const std::vector<float> values = {0x1p-149F};
  EXPECT_EQ(estimates_of(sketch, sketch_of(sketch, values), 1).front(), 0x1p-149F);
}

// Over 4,000 seeds, within five standard deviations. With four-wise independent signs the mean
// squared error of a row is the sum of the other elements' squares over c; with fewer it need not
// be.
TEST(CountSketch, EstimatesWithoutBiasAndWithTheErrorOfTheTheory) {
  constexpr std::uint64_t kSeeds = 4000;
  constexpr std::size_t d = 40;
  constexpr std::uint64_t columns = 8;
  Random random(8);
  const std::vector<double> values = whole_numbers(d, random);
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  std::vector<double> errors;
  std::vector<double> variances;  // of the rows
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const CountSketch sketch(seed, columns);
    const std::vector<double> cells = sketch_of(sketch, values);
    errors.push_back(estimates_of(sketch, cells, d).front() - values.front());
    for (const reference::Place& place : reference::places_of(0, seed, columns)) {
      const double error = (place.minus ? -cells[place.cell] : cells[place.cell]) - values.front();
      variances.push_back(error * error);
    }
  }
  const auto expect_mean = [](const std::vector<double>& of, double mean) {
    const auto n = static_cast<double>(of.size());
    const double seen = std::accumulate(of.begin(), of.end(), 0.0) / n;
    double deviation = 0;
    for (const double each : of) {
      deviation += (each - seen) * (each - seen) / n;
    }
    EXPECT_NEAR(seen, mean, 5 * std::sqrt(deviation / n));
  };
  expect_mean(errors, 0);
  expect_mean(variances, (squares - values.front() * values.front()) / columns);
}

// Over all seeds: any four signs are independent, and so are any two cells.
TEST(CountSketch, DrawsSignsFourWiseAndCellsTwoWiseIndependent) {
  constexpr std::uint64_t kSeeds = 20'000;
  constexpr std::uint64_t columns = 7;
  std::vector<double> patterns(16);
  std::vector<double> pairs(columns * columns);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::size_t pattern = 0;
    std::vector<std::uint64_t> cells;
    for (const std::uint64_t index : {0UL, 1UL, 2UL, 1'000'003UL}) {
      const reference::Place place = reference::places_of(index, seed, columns).front();
      pattern = 2 * pattern + (place.minus ? 1 : 0);
      cells.push_back(place.cell);
    }
    ++patterns[pattern];
    ++pairs[columns * cells[0] + cells[1]];
  }
  const auto expect = [](double seen, double share) {
    EXPECT_NEAR(seen, kSeeds * share, 5 * std::sqrt(kSeeds * share * (1 - share)));
  };
  for (const double seen : patterns) {
    expect(seen, 1.0 / 16);
  }
  for (const double seen : pairs) {
    expect(seen, 1.0 / (columns * columns));
  }
}

// k elements of at least ten times what the others add to a cell on average; c = 10 k, as in
// `sketch`. Each is twice the previous one, so that no two in a cell cancel.
TEST(CountSketch, FindsEveryPlantedHeavyHitter) {
  constexpr std::size_t d = 20'000;
  constexpr std::size_t k = 20;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const CountSketch sketch(seed, 10 * k);
    std::vector<double> values(d);
    for (double& value : values) {
      value = random.one_in(2) ? 1.0 : -1.0;
    }
    std::vector<std::size_t> planted;
    double magnitude = 10 * std::sqrt(d / (10.0 * k));
    while (planted.size() < k) {
      const std::size_t index = random.below(d);
      if (std::fabs(values[index]) > 1) {
        continue;
      }
      values[index] *= magnitude;
      magnitude *= 2;
      planted.push_back(index);
    }
    const std::vector<double> estimates = estimates_of(sketch, sketch_of(sketch, values), d);
    std::vector<double> order = estimates;
    std::ranges::nth_element(order, order.begin() + 8 * k - 1,
                             [](double a, double b) { return std::fabs(a) > std::fabs(b); });
    for (const std::size_t index : planted) {
      EXPECT_GE(std::fabs(estimates[index]), std::fabs(order[8 * k - 1])) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace gtopk::sparse
