// Test support: cases for any selector of the registry, and the reference's results
// for them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/gtopk/select/selector.hpp"
#include "src/numbers/accumulation.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/simd_targets.hpp"
#include "tests/reference/reference_selectors.hpp"

namespace gtopk::sparse {

template <class Param>
class Selectors : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;
  using List = testing::List<Value, Index>;

  struct Case {
    std::vector<T> gradient;
    std::vector<Value> residual;  // empty: none
    SparseOptions options;
    SelectorState state;

    [[nodiscard]] std::string description() const {
      return fmt::format("{} d {} k {} density {} block {} state {}", options.selector,
                         gradient.size(), options.k, options.density, options.block,
                         state.numbers[0]);
    }
  };

  struct Outcome {
    Selection selection;
    List list;
  };

  /// Values that are all +1 or -1, or a few large ones far from the rest.
  static std::vector<T> extreme_values(std::size_t d, std::mt19937_64& random) {
    std::vector<T> values(d);
    const bool heavy = random() % 2 == 0;
    for (T& value : values) {
      const Value sign = random() % 2 == 0 ? Value{1} : Value{-1};
      const auto u = static_cast<Value>(random() % 10'000 + 1);
      value = narrow<T>(heavy ? sign * 100 / u : sign);
    }
    return values;
  }

  static std::vector<T> values(std::size_t d, std::mt19937_64& random) {
    return random() % 3 == 0 ? extreme_values(d, random)
                             : testing::random_values<T>(testing::random_kind(random), d, random);
  }

  static Case random_case(std::uint64_t seed, const std::string& selector, std::size_t d) {
    std::mt19937_64 random(seed);
    Case one;
    one.gradient = values(d, random);
    if (random() % 4 != 0) {
      one.residual = testing::random_values<Value>(testing::random_kind(random), d, random);
      if (random() % 2 == 0) {
        std::fill(one.residual.begin(), one.residual.end(), Value{0});
      }
    }
    one.options.selector = selector;
    one.options.k = random() % 6 == 0 ? d : 1 + random() % (random() % 2 == 0 ? d : 1 + d / 20);
    if (selector == "block") {
      one.options.density = static_cast<double>(one.options.k) / static_cast<double>(d);
      one.options.k = 0;
      one.options.block = random() % 4 == 0 ? d + random() % 5 : 1 + random() % (1 + d / 2);
    }
    if (random() % 3 != 0) {  // a threshold equal or close to an element's magnitude
      const Value near =
          std::fabs(testing::reference_acc(one.gradient, one.residual)[random() % d]);
      const double factors[] = {1, 0.9, 1.1, 1.3, 0.5};
      one.state.numbers[0] = static_cast<double>(near) * factors[random() % 5];
    }
    return one;
  }

  static const SelectorRow& row(const Case& one) {
    return selector_registry().find(one.options.selector);
  }

  static std::size_t k_of(const Case& one) {
    const std::size_t d = one.gradient.size();
    return row(one).per_block ? selection_size(d, one.options.density, one.options.block)
                              : one.options.k;
  }

  static std::size_t most_of(const Case& one) {
    return row(one).most_of(one.gradient.size(), k_of(one));
  }

  Outcome select(const Case& one, Segments<void> tensor) {
    const std::size_t capacity = most_of(one);
    Outcome outcome;
    auto arrays = outcome.list.out(capacity + 1);
    outcome.list.indices[capacity] = 77;  // just past the end
    outcome.list.values[capacity] = -7;
    sparse::List out;
    out.indices = reinterpret_cast<std::byte*>(arrays.indices);
    out.values = reinterpret_cast<std::byte*>(arrays.values);
    out.capacity = capacity;
    outcome.selection =
        row(one).select({.tensor = tensor,
                         .residual = one.residual.empty() ? nullptr : one.residual.data(),
                         .d = one.gradient.size(),
                         .dtype = testing::kTypeOf<T>,
                         .k = k_of(one),
                         .entry = {accumulation_type(testing::kTypeOf<T>), sizeof(Index)},
                         .density = one.options.density,
                         .block = one.options.block,
                         .state = one.state},
                        out, scratch_);
    EXPECT_EQ(outcome.list.indices[capacity], 77U) << one.description();
    EXPECT_EQ(outcome.list.values[capacity], -7) << one.description();
    outcome.list.shrink(outcome.selection.count);
    return outcome;
  }

  Outcome select(Case& one) { return select(one, Segments<void>(one.gradient.data())); }

  struct Expected {
    bool finite = true;
    List list;
    SelectorState next{};
  };

  static Expected reference(const Case& one) {
    const auto acc = testing::reference_acc(one.gradient, one.residual);
    Expected expected;
    expected.finite = testing::all_finite(acc);
    if (!expected.finite) {
      return expected;
    }
    SelectorState state = one.state;
    for (const auto& [index, value] : reference::select(acc, one.options, state)) {
      expected.list.push(static_cast<Index>(index), value);
    }
    if (one.options.selector == "threshold") {
      expected.next = state;
    }
    return expected;
  }

  static void expect_equal(const Outcome& outcome, const Expected& expected, const Case& one) {
    ASSERT_EQ(outcome.selection.finite, expected.finite) << one.description();
    ASSERT_TRUE(testing::same_bits(outcome.list, expected.list))
        << one.description() << ", selected " << outcome.selection.count << ", expected "
        << expected.list.indices.size();
    ASSERT_EQ(outcome.selection.next.numbers, expected.next.numbers) << one.description();
  }

  void expect_reference(Case one) {
    const Expected expected = reference(one);
    ASSERT_LE(expected.list.indices.size(), most_of(one)) << one.description();
    testing::for_each_simd_target([&] { expect_equal(select(one), expected, one); });
  }

  template <class Body>
  void for_each_selector(Body body) {
    for (const Choice& choice : selectors()) {
      SCOPED_TRACE(choice.name);
      body(std::string(choice.name));
    }
  }

  SelectScratch scratch_;
};

}  // namespace gtopk::sparse
