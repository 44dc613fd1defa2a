// Sparse, algorithms room: `random-k`, a control: k indices drawn from a seed that all ranks share
// (Stich et al., NeurIPS 2018), so only values travel, in a dense all-reduce of k of them.
#include <algorithm>
#include <limits>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/algorithms/permutation.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Task;

/// k indices of [0, d), ascending.
template <class Index>
void draw(std::uint64_t seed, std::size_t d, std::size_t k, Index* indices) {
  if (d == 0) {
    return;
  }
  const Permutation permutation(seed, d);
  for (std::size_t i = 0; i < k; ++i) {
    indices[i] = static_cast<Index>(permutation(i));
  }
  std::sort(indices, indices + k);
}

template <class T, class Index>
Task<void> random_k_as(GroupView& group, SparseCall call) {
  using Value = Accumulation<T>;
  const auto k = static_cast<std::size_t>(std::min(call.options.k, call.d));
  const EntriesOut<Value, Index> drawn = result_room<Value, Index>(group, call, k);
  group.enter("compress");
  Computation drawing = group.compute(call.device ? k : call.d, [&] {
    draw(call.options.seed.value_or(group.sequence()), static_cast<std::size_t>(call.d), k,
         drawn.indices);
    if (!call.device) {
      gather<T>(call, drawn.indices, k, drawn.values);
    }
  });
  co_await drawing;
  if (call.device) {
    Task<void> gathering = gather_there<Value, Index>(group, *call.device, drawn, k);
    co_await gathering;
  }

  group.enter("exchange");
  const DataType type = accumulation_type(call.dtype);
  Task<void> reducing =
      collectives::reduce_over_ranks(group, drawn.values, k, type, ReduceOp::kSum);
  co_await reducing;

  Task<void> delivering = deliver_alike<T, Index>(
      group, call, [&] { return Found<T, Index>{{drawn.indices, drawn.values, k}}; });
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

AccRoom random_k_on_device(std::uint64_t /*d*/, std::uint64_t k) { return {.delivered = k}; }

}  // namespace

const AlgorithmRow kRandomK{
    .name = "random-k",
    .description = "a control: k indices drawn from one seed on all ranks, so only values travel",
    .draws = true,
    .whole = random_k,
    .on_device = random_k_on_device};

}  // namespace gtopk::sparse
