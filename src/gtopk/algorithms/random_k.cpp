// Sparse, algorithms room: `random-k`, a control: k indices drawn from a seed that all ranks share
// (Stich et al., NeurIPS 2018), so that values travel alone, by a dense all-reduce of k of them.
#include <algorithm>
#include <array>
#include <limits>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/permutation.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Task;

/// k of [0, d), ascending.
template <class Index>
void draw(std::uint64_t seed, std::size_t d, std::size_t k, Index* indices) {
  if (d == 0) return;
  const Permutation permutation(seed, d);
  for (std::size_t i = 0; i < k; ++i) indices[i] = static_cast<Index>(permutation(i));
  std::sort(indices, indices + k);
}

/// acc at k ascending indices; all NaN when any acc is not finite, drawn or not.
template <class T, class Index>
void take(const SparseCall& call, const Index* indices, std::size_t k, Accumulation<T>* values) {
  using Value = Accumulation<T>;
  constexpr std::size_t kStretch = 4096;
  const auto* const residual = static_cast<const Value*>(call.residual);
  std::array<Value, kStretch> acc;
  std::size_t taken = 0;
  bool finite = true;
  SegmentCursor<T> cursor{Segments<T>(call.tensor)};
  for (std::size_t begin = 0, end = 0; begin < call.d; begin = end) {
    cursor.go_to(begin);
    end = std::min({begin + kStretch, cursor.end(), static_cast<std::size_t>(call.d)});
    finite &= accumulate<T, Value>(Segments<const T>(cursor.at(begin)),
                                   residual == nullptr ? nullptr : residual + begin, acc.data(),
                                   end - begin);
    for (; taken < k && indices[taken] < end; ++taken) values[taken] = acc[indices[taken] - begin];
  }
  if (!finite) std::fill_n(values, k, std::numeric_limits<Value>::quiet_NaN());
}

template <class T, class Index>
Task<void> random_k_as(GroupView& group, SparseCall call) {
  using Value = Accumulation<T>;
  const auto k = static_cast<std::size_t>(std::min(call.options.k, call.d));
  const EntriesOut<Value, Index> drawn = entries_room<Value, Index>(group, k);
  group.enter("compress");
  Computation drawing = group.compute([&] {
    draw(call.options.seed.value_or(group.sequence()), static_cast<std::size_t>(call.d), k,
         drawn.indices);
    take<T>(call, drawn.indices, k, drawn.values);
  });
  co_await drawing;

  group.enter("exchange");
  const DataType type = accumulation_type(call.dtype);
  Task<void> reducing =
      collectives::reduce_over_ranks(group, drawn.values, k, type, ReduceOp::kSum);
  co_await reducing;

  Task<void> delivering = deliver_alike<T, Index>(group, call, {drawn.indices, drawn.values, k});
  co_await delivering;
}

Task<void> random_k(GroupView& group, SparseCall call) {
  Task<void> body;
  visit_floating(call.dtype, [&]<class T>() {
    body = call.d > std::numeric_limits<std::uint32_t>::max()
               ? random_k_as<T, std::uint64_t>(group, call)
               : random_k_as<T, std::uint32_t>(group, call);
  });
  return body;
}

}  // namespace

const AlgorithmRow kRandomK{
    .name = "random-k",
    .description = "a control: k indices drawn from one seed on all ranks, values travel alone",
    .draws = true,
    .whole = random_k};

}  // namespace gtopk::sparse
