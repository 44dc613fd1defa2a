// Tests, device: cases of an exact selection, and what the CPU selects.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/gtopk/select/select_exact.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"

namespace gtopk::sparse::testing {

template <class T>
struct SelectCase {
  using Value = Accumulation<T>;

  std::vector<T> gradient;
  std::vector<Value> residual;  // empty: none
  std::size_t k = 1;
  bool cut = false;
  std::uint64_t begin = 0;  // the number of the first element

  static SelectCase random(std::mt19937_64& random, std::size_t largest) {
    SelectCase one;
    const std::size_t d = random() % largest;
    one.gradient = random_values<T>(random_kind(random), d, random);
    if (random() % 4 != 0) {
      one.residual = random_values<Value>(random_kind(random), d, random);
    }
    one.k = random() % 8 == 0 ? d + random() % 3 : random() % (1 + d / (1 + random() % 50));
    one.cut = random() % 2 == 0;
    return one;
  }

  /// With an element that is not finite.
  static SelectCase random_spoiled(std::mt19937_64& random, std::size_t largest) {
    SelectCase one = SelectCase::random(random, largest);
    one.gradient.push_back(T{});
    one.residual.resize(one.residual.empty() ? 0 : one.gradient.size());
    const Value wrong[] = {std::numeric_limits<Value>::infinity(),
                           -std::numeric_limits<Value>::infinity(),
                           std::numeric_limits<Value>::quiet_NaN()};
    one.gradient[random() % one.gradient.size()] = narrow<T>(wrong[random() % 3]);
    return one;
  }

  [[nodiscard]] std::size_t d() const { return gradient.size(); }
  [[nodiscard]] std::size_t most() const { return std::min(k, d()); }
};

template <class Value, class Index>
struct Selected {
  bool finite = true;
  List<Value, Index> list;
};

template <class Index, class T>
[[nodiscard]] Selected<Accumulation<T>, Index> selected_on_the_cpu(const SelectCase<T>& one) {
  SelectScratch scratch;
  Selected<Accumulation<T>, Index> selected;
  const Selection selection = select_exact<T, Accumulation<T>, Index>(
      one.gradient.data(), one.residual.empty() ? nullptr : one.residual.data(), one.d(), one.k,
      selected.list.out(one.most()), scratch);
  selected.finite = selection.finite;
  selected.list.shrink(selection.count);
  for (Index& index : selected.list.indices) {
    index += static_cast<Index>(one.begin);
  }
  return selected;
}

}  // namespace gtopk::sparse::testing
