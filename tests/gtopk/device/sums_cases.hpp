// Tests, device: vectors for calls without a selection, and what the CPU gathers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/random_values.hpp"

namespace gtopk::sparse::testing {

template <class T>
struct SumsVector {
  using Value = Accumulation<T>;

  std::vector<T> tensor;
  std::vector<Value> residual;  // empty: none

  static SumsVector random(std::mt19937_64& random) {
    SumsVector one;
    const std::size_t d = 1 + random() % 9'000;
    one.tensor = random_values<T>(random_kind(random), d, random);
    if (random() % 4 != 0) {
      one.residual = random_values<Value>(random_kind(random), d, random);
    }
    if (random() % 3 == 0) {
      one.tensor[random() % d] = narrow<T>(std::numeric_limits<Value>::infinity());
    }
    return one;
  }

  [[nodiscard]] std::size_t d() const { return tensor.size(); }
  [[nodiscard]] Value* kept() { return residual.empty() ? nullptr : residual.data(); }
  [[nodiscard]] std::vector<Value> acc() {
    std::vector<Value> all(d());
    (void)accumulate<T, Value>(tensor.data(), kept(), all.data(), d());
    return all;
  }
};

/// Some below d, ascending; maybe all or none.
template <class Index>
[[nodiscard]] std::vector<Index> random_indices(std::size_t d, std::mt19937_64& random) {
  std::vector<Index> indices(d);
  std::iota(indices.begin(), indices.end(), Index{0});
  std::ranges::shuffle(indices, random);
  indices.resize(random() % (d + 1));
  std::ranges::sort(indices);
  return indices;
}

/// All NaN if acc is not finite.
template <class T, class Index>
[[nodiscard]] std::vector<Accumulation<T>> gathered_on_the_cpu(SumsVector<T>& one,
                                                               std::vector<Index>& indices) {
  SparseCall call;
  call.dtype = kTypeOf<T>;
  call.tensor = Segments<void>(one.tensor.data());
  call.residual = one.kept();
  call.d = one.d();
  std::vector<Accumulation<T>> values(indices.size());
  sparse::List list;
  list.indices = reinterpret_cast<std::byte*>(indices.data());
  list.values = reinterpret_cast<std::byte*>(values.data());
  list.size = indices.size();
  gather(call, {accumulation_type(call.dtype), sizeof(Index)}, list);
  return values;
}

/// The tensor and the residual after the commit of all sums.
template <class T>
[[nodiscard]] SumsVector<T> committed_on_the_cpu(SumsVector<T> one,
                                                 const std::vector<Accumulation<T>>& sums,
                                                 bool happened, Accumulation<T> divisor) {
  if (happened) {
    commit_whole<T, Accumulation<T>>(one.tensor.data(), one.kept(), sums.data(), one.d(), divisor);
  } else {
    fill_nan(Segments<T>(one.tensor.data()), one.d());
  }
  return one;
}

}  // namespace gtopk::sparse::testing
