// Tests, device: cases of every selector that a device has, and what the selector's own
// code selects.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/gtopk/device/block.hpp"
#include "tests/gtopk/select/selectors.hpp"

namespace gtopk::sparse {

template <class Param>
class RuledSelectors : public Selectors<Param> {
 protected:
  using Base = Selectors<Param>;
  using typename Base::Case;
  using typename Base::Index;
  using typename Base::Outcome;
  using typename Base::T;
  using typename Base::Value;
  using Rule = SelectionRule::Kind;

  static std::optional<SelectionRule> rule_of(const Case& one) {
    return Base::row(one).on_device(one.gradient.size(), Base::k_of(one), one.options);
  }

  /// A case of any selector, with a rule where a device has one for it.
  Case random_case(std::uint64_t seed, const std::string& selector, std::size_t largest) {
    std::mt19937_64 random(seed);
    const std::size_t most = random() % 4 == 0 ? largest : 1 + largest / 20;
    Case one = Base::random_case(seed, selector, 1 + random() % most);
    if (selector == "block") {  // also those of several tiles
      one.options.block = 64 + random() % (random() % 2 == 0 ? 200 : largest);
    }
    return one;
  }

  /// A threshold close to the data, or one that no step leaves. The options point to `one`'s state.
  static void let_it_have_a_state(std::uint64_t seed, Case& one) {
    const double odd[] = {0.0, -1.0, std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN()};
    if (seed % 8 == 0) {
      one.state.numbers[0] = odd[seed / 8 % 4];
    }
    one.options.state = &one.state;  // that there is one is all that matters
  }

  static void spoil(Case& one, std::mt19937_64& random) {
    one.gradient[random() % one.gradient.size()] =
        narrow<T>(random() % 2 == 0 ? std::numeric_limits<Value>::infinity()
                                    : std::numeric_limits<Value>::quiet_NaN());
  }

  /// Where the elements' numbers pass what a signed number of 32 bits can hold.
  static constexpr std::uint64_t kFarBegin = (std::uint64_t{1} << 31U) - 5;

  /// `begin`: the number of the first element.
  Outcome expected(Case one, const SelectionRule& rule, std::uint64_t begin) {
    if (rule.kind != Rule::kThreshold) {
      one.state = {};
    }
    Outcome outcome = this->select(one);
    for (Index& index : outcome.list.indices) {
      index += static_cast<Index>(begin);
    }
    return outcome;
  }

  static void expect_same(const Outcome& seen, const Outcome& expected, const Case& one,
                          const SelectionRule& rule) {
    ASSERT_EQ(seen.selection.finite, expected.selection.finite) << one.description();
    ASSERT_TRUE(testing::same_bits(seen.list, expected.list))
        << one.description() << ", selected " << seen.selection.count << ", expected "
        << expected.selection.count;
    if (rule.kind == Rule::kThreshold && seen.selection.finite) {
      ASSERT_EQ(seen.selection.next.numbers, expected.selection.next.numbers) << one.description();
    }
  }

  /// Equal values in a block of several tiles, and in a last one of seven elements.
  struct TiesInBlocks {
    static constexpr std::uint64_t kBlockSize = std::uint64_t{2} * device::kTile + 500;
    static constexpr std::uint64_t kKept = device::kTile + 900;
    static constexpr std::uint64_t kKeptOfLast = 3;

    TiesInBlocks() {
      one.options.selector = "block";
      one.gradient.assign(kBlockSize + 7, narrow<T>(-2));
      std::iota(indices.begin(), indices.begin() + kKept, Index{0});
      std::iota(indices.begin() + kKept, indices.end(), static_cast<Index>(kBlockSize));
    }

    Case one;
    SelectionRule rule{.kind = Rule::kBlocks,
                       .k = kKept,
                       .most = kKept + kKeptOfLast,
                       .block = kBlockSize,
                       .k_of_last = kKeptOfLast};
    std::vector<Index> indices = std::vector<Index>(kKept + kKeptOfLast);  ///< expected
  };
};

}  // namespace gtopk::sparse
