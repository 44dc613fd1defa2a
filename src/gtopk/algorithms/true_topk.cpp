// Sparse, algorithms room: `true-topk`, a control: the exact top k of the sum of all acc, which
// every sparse all-reduce approximates, at the price of `dense`. (SketchedSGD's trueTopk, Ivkin et
// al., NeurIPS 2019.) Delivered elements are cleared from residuals; the rest stays.
#include <limits>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

template <class T, class Index>
Task<void> true_topk_as(GroupView& group, SparseCall call) {
  using Value = Accumulation<T>;
  const auto d = static_cast<std::size_t>(call.d);
  const auto k = static_cast<std::size_t>(std::min(call.options.k, call.d));
  Value* const sum = sums_room<Value>(group, call, d);
  group.enter("compress");
  Task<void> accumulating = accumulate_all<T>(group, call, sum);
  co_await accumulating;

  group.enter("exchange");
  const DataType type = accumulation_type(call.dtype);
  Task<void> reducing = collectives::reduce_over_ranks(group, sum, d, type, ReduceOp::kSum);
  co_await reducing;

  // A non-finite acc on any rank makes a sum non-finite, which every rank sees.
  const EntriesOut<Value, Index> room = result_room<Value, Index>(group, call, k);
  Task<void> delivering = deliver_alike<T, Index>(group, call, [&] {
    const Selection selection = select_exact<Value, Value, Index>(
        Segments<const Value>(sum), nullptr, d, k, room, select_scratch_of_this_thread());
    return Found<T, Index>{{room.indices, room.values, selection.count}, selection.finite};
  });
  co_await delivering;
}

Task<void> true_topk(GroupView& group, SparseCall call) {
  Task<void> body;
  visit_floating(call.dtype, [&]<class T>() {
    body = call.d > std::numeric_limits<std::uint32_t>::max()
               ? true_topk_as<T, std::uint64_t>(group, call)
               : true_topk_as<T, std::uint32_t>(group, call);
  });
  return body;
}

AccRoom true_topk_on_device(std::uint64_t d, std::uint64_t k) {
  return {.whole = true, .sums = d, .delivered = k};
}

}  // namespace

const AlgorithmRow kTrueTopk{.name = "true-topk",
                             .description = "a control: the exact top k of the sum of all acc",
                             .whole = true_topk,
                             .on_device = true_topk_on_device};

}  // namespace gtopk::sparse
