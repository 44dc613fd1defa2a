// Tests of the device room: cases of a merge, and what the CPU makes of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>

#include "src/gtopk/merge/merge.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/reference.hpp"

namespace gtopk::sparse::testing {

template <class Value, class Index>
struct MergeCase {
  using Entry = List<Value, Index>;

  Entry a;
  Entry b;
  std::size_t k = 0;

  static MergeCase random(std::uint64_t seed, std::mt19937_64& random) {
    const std::size_t largest = seed % 5 == 0 ? 6'000 : seed % 3 == 0 ? 6 : 300;
    const unsigned spread = 1 + static_cast<unsigned>(random() % 4);
    MergeCase one;
    one.a = random_list(random() % largest, spread, random);
    one.b = random_list(random() % largest, spread, random);
    one.k = random() % (largest + 2);
    return one;
  }
  /// Every index in both; some sums cancel.
  static MergeCase cancelling(const MergeCase& other, std::mt19937_64& random) {
    MergeCase one = other;
    one.b = one.a;
    for (auto& value : one.b.values) {
      value = random() % 2 == 0 ? -value : value;
    }
    return one;
  }

  static Entry random_list(std::size_t size, unsigned gap, std::mt19937_64& random) {
    // Also where 31 and 32 bits end.
    const std::uint64_t starts[] = {0, 0x7FFFFF00U, sizeof(Index) == 8 ? 0xFFFFFF00U : 0U};
    return random_list_from<Value, Index>(starts[random() % 3], size, gap, random);
  }

  [[nodiscard]] std::size_t all() const { return a.indices.size() + b.indices.size(); }
  [[nodiscard]] MergeCase swapped() const { return {b, a, k}; }
};

/// Sums that are not finite, calling test(one).
template <class Value, class Index, class Test>
void for_each_infinite_sum(Test test) {
  std::mt19937_64 random(3);
  MergeCase<Value, Index> one;
  one.a = MergeCase<Value, Index>::random_list(3000, 2, random);
  one.b = one.a;
  one.k = 100;
  one.a.values[1234] = std::numeric_limits<Value>::max();
  auto too_large = one;
  too_large.b.values[1234] = std::numeric_limits<Value>::max();
  test(too_large);
  too_large.k = 0;
  test(too_large);
  one.a.values[1234] = std::numeric_limits<Value>::quiet_NaN();
  one.k = 5000;
  test(one);
}

template <class Value, class Index>
struct MergeOutcome {
  bool finite = true;
  List<Value, Index> kept;
  List<Value, Index> dropped;
};

template <class Value, class Index>
[[nodiscard]] MergeOutcome<Value, Index> merged_on_the_cpu(const MergeCase<Value, Index>& one) {
  MergeOutcome<Value, Index> outcome;
  auto dropped = outcome.dropped.out(one.all());
  MergeScratch scratch;
  const Merged merged = merge(one.a.view(), one.b.view(), one.k,
                              outcome.kept.out(std::min(one.k, one.all())), &dropped, scratch);
  outcome.finite = merged.finite;
  outcome.kept.shrink(merged.kept);
  outcome.dropped.shrink(merged.dropped);
  return outcome;
}

template <class Value, class Index>
[[nodiscard]] MergeOutcome<Value, Index> united_on_the_cpu(const MergeCase<Value, Index>& one) {
  MergeOutcome<Value, Index> outcome;
  const Merged united = unite(one.a.view(), one.b.view(), outcome.kept.out(one.all()));
  outcome.finite = united.finite;
  outcome.kept.shrink(united.kept);
  return outcome;
}

/// A list `b` as a damaged message may hold it, or one that is sound.
template <class Value, class Index>
struct UnsoundCase {
  MergeCase<Value, Index> lists;
  std::uint64_t d = 20'000;
  bool sound = true;

  static UnsoundCase random(std::uint64_t seed, std::mt19937_64& random) {
    UnsoundCase one;
    one.lists.a = random_list_below<Value, Index>(20'000, 3, random);
    one.lists.b = random_list_below<Value, Index>(20'000, 1 + seed % 5, random);
    one.lists.k = 500;
    auto& indices = one.lists.b.indices;
    const std::size_t at = 1 + random() % (indices.size() - 1);
    one.sound = seed % 4 == 0;
    switch (seed % 4) {
      case 0:
        break;
      case 1:
        std::swap(indices[at], indices[at - 1]);
        break;
      case 2:
        indices[at] = indices[at - 1];
        break;
      default:
        one.d = indices.back();
    }
    return one;
  }
};

}  // namespace gtopk::sparse::testing
