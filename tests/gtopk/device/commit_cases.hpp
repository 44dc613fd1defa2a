// Tests, device: cases of a commit, and what the CPU writes.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "src/gtopk/residual/commit.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"

namespace gtopk::sparse::testing {

template <class T, class Index>
struct CommitCase {
  using Value = Accumulation<T>;
  using Entry = List<Value, Index>;

  std::vector<T> tensor;
  std::vector<Value> residual;  // empty: none
  std::vector<Value> momentum;  // empty: none
  Entry own;
  Entry result;
  std::vector<Entry> dropped;
  PutBack put_back = PutBack::kOwn;
  Value divisor = 1;

  static CommitCase random(std::mt19937_64& random, std::size_t largest) {
    CommitCase one;
    const std::size_t d = 1 + random() % largest;
    one.tensor = random_values<T>(random_kind(random), d, random);
    if (random() % 5 != 0) {
      one.residual = random_values<Value>(random_kind(random), d, random);
    }
    if (random() % 3 == 0) {
      one.momentum = random_values<Value>(Kind::kGaussian, d, random);
    }
    const std::size_t sparsity = 1 + random() % 20;
    one.own = random_list_below<Value, Index>(d, sparsity, random);
    one.result = random_list_below<Value, Index>(d, sparsity, random);
    for (std::size_t list = random() % 5; list > 0; --list) {
      one.dropped.push_back(random_list_below<Value, Index>(d, sparsity, random));
    }
    one.put_back = random() % 2 == 0 ? PutBack::kOwn : PutBack::kMerged;
    one.divisor = static_cast<Value>(1 + random() % 9);
    return one;
  }

  [[nodiscard]] std::vector<Entries<Value, Index>> views() const {
    std::vector<Entries<Value, Index>> views;
    for (const auto& list : dropped) {
      views.push_back(list.view());
    }
    return views;
  }
  [[nodiscard]] std::size_t all_dropped() const {
    std::size_t all = 0;
    for (const auto& list : dropped) {
      all += list.indices.size();
    }
    return all;
  }
  [[nodiscard]] static Value* data(std::vector<Value>& numbers) {
    return numbers.empty() ? nullptr : numbers.data();
  }
};

template <class T, class Index>
[[nodiscard]] CommitCase<T, Index> committed_on_the_cpu(CommitCase<T, Index> one, bool happened) {
  using Case = CommitCase<T, Index>;
  using Value = typename Case::Value;
  if (!happened) {
    fill_nan(Segments<T>(one.tensor.data()), one.tensor.size());
    return one;
  }
  const auto dropped = one.views();
  const StepLists<Value, Index> lists{.own = one.own.view(),
                                      .result = one.result.view(),
                                      .dropped = dropped,
                                      .put_back = one.put_back};
  commit<T, Value, Index>(one.tensor.data(), Case::data(one.residual), one.tensor.size(), lists,
                          one.divisor);
  if (!one.momentum.empty()) {
    mask(one.momentum.data(), lists);
  }
  return one;
}

template <class T, class Index>
void expect_same(const CommitCase<T, Index>& seen, const CommitCase<T, Index>& expected) {
  EXPECT_TRUE(same_bits(seen.tensor, expected.tensor));
  EXPECT_TRUE(same_bits(seen.residual, expected.residual));
  EXPECT_TRUE(same_bits(seen.momentum, expected.momentum));
}

}  // namespace gtopk::sparse::testing
