// Sparse, algorithms: `true-topk`, a control: the exact top k of the sum of all acc, which every
// sparse all-reduce approximates, at the cost of `dense`. It is SketchedSGD's trueTopk (Ivkin et
// al., NeurIPS 2019). Delivered elements are cleared from residuals; the rest stays.
#include <algorithm>
#include <functional>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/value/list.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

Task<void> true_topk(GroupView& group, SparseCall call) {
  const auto d = static_cast<std::size_t>(call.d);
  const auto k = static_cast<std::size_t>(std::min(call.options.k, call.d));
  group.enter("compress");
  Task<void*> accumulating = accumulate_all(group, call);
  void* const sum = co_await accumulating;

  group.enter("exchange");
  co_await collectives::reduce_over_ranks(group, sum, d, accumulation_type(call.dtype),
                                          ReduceOp::kSum);

  // A non-finite acc on any rank makes a sum non-finite, which every rank sees.
  const List output = result_buffer(group, call, k);
  const auto find = [&] { return largest_of(call.entry_type(), sum, d, output); };
  Task<void> delivering = deliver_alike(group, call, std::ref(find));
  co_await delivering;
}

AccCapacity true_topk_on_device(std::uint64_t d, std::uint64_t k) {
  return {.whole = true, .sums = d, .delivered = k};
}

}  // namespace

const AlgorithmRow kTrueTopk{.name = "true-topk",
                             .description = "a control: the exact top k of the sum of all acc",
                             .whole = true_topk,
                             .on_device = true_topk_on_device};

}  // namespace gtopk::sparse
