// Sparse, algorithms: `random-k`, a control: k indices drawn from a seed that all ranks share
// (Stich et al., NeurIPS 2018), so only values are sent, in a dense all-reduce of k of them.
#include <algorithm>
#include <functional>

#include "gtopk/collectives.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/algorithms/permutation.hpp"
#include "src/gtopk/value/list.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Task;

/// Draws k indices of [0, d), ascending.
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

Task<void> random_k(GroupView& group, SparseCall call) {
  const auto k = static_cast<std::size_t>(std::min(call.options.k, call.d));
  List drawn = result_buffer(group, call, k);
  drawn.size = k;
  group.enter("compress");
  if (call.device) {
    spoil_unless_finite(*call.device, call.entry_type(), drawn);
  } else {
    Computation drawing = group.compute(call.d, [&] {
      const std::uint64_t seed = call.options.seed.value_or(group.sequence());
      visit_entry(call.entry_type(), [&]<class Value, class Index>() {
        draw(seed, static_cast<std::size_t>(call.d), k, drawn.output<Value, Index>().indices);
      });
      gather(call, call.entry_type(), drawn);
    });
    co_await drawing;
  }

  group.enter("exchange");
  co_await collectives::reduce_over_ranks(group, drawn.values, k, accumulation_type(call.dtype),
                                          ReduceOp::kSum);

  const auto find = [&] { return drawn; };
  Task<void> delivering = deliver_alike(group, call, std::ref(find));
  co_await delivering;
}

AccCapacity random_k_on_device(std::uint64_t /*d*/, std::uint64_t k) {
  return {.drawn = true, .delivered = k};
}

}  // namespace

const AlgorithmRow kRandomK{
    .name = "random-k",
    .description = "a control: k indices drawn from one seed on all ranks, so only values travel",
    .draws = true,
    .whole = random_k,
    .on_device = random_k_on_device};

}  // namespace gtopk::sparse

namespace gtopk {

void draw_indices(const AccCapacity& capacity, std::uint64_t d, std::uint64_t seed, void* indices) {
  const auto count = static_cast<std::size_t>(capacity.delivered);
  const auto of = static_cast<std::size_t>(d);
  if (capacity.index_bytes == sizeof(std::uint64_t)) {
    sparse::draw(seed, of, count, static_cast<std::uint64_t*>(indices));
  } else {
    sparse::draw(seed, of, count, static_cast<std::uint32_t*>(indices));
  }
}

}  // namespace gtopk
