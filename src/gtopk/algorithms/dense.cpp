// Sparse, algorithms room: `dense`, which sends all of acc and leaves no residual: the baseline for
// sparse results. acc travels in the accumulation type; collectives/all_reduce.hpp has the order of
// summation.

#include <algorithm>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

template <class T>
Task<void> dense_as(GroupView& group, SparseCall call) {
  using Value = Accumulation<T>;
  const auto d = static_cast<std::size_t>(call.d);
  // acc is a copy: the gradient must still be there if ranks turn out to differ.
  Value* const acc = sums_room<Value>(group, call, d);
  group.enter("compress");
  Task<void> accumulating = accumulate_all<T>(group, call, acc);
  co_await accumulating;

  group.enter("exchange");
  const DataType type = accumulation_type(call.dtype);
  Task<void> reducing = collectives::reduce_over_ranks(group, acc, d, type, ReduceOp::kSum);
  co_await reducing;

  // A non-finite acc on any rank makes a sum non-finite, which every rank sees.
  const auto divisor = divisor_of<Value>(call.options, group.size());
  Task<void> settling = settle(
      group, call.gate.get(), call.d, [&] { return all_representable<T, Value>(acc, d, divisor); },
      [&](bool happened) {
        if (call.device) {
          leave_to_device(*call.device, 0, happened);
        } else if (happened) {
          commit_whole<T, Value>(Segments<T>(call.tensor), static_cast<Value*>(call.residual), acc,
                                 d, divisor);
        } else {
          fill_nan(Segments<T>(call.tensor), d);
        }
        if (happened && call.delivered.values != nullptr) {
          std::copy_n(acc, d, static_cast<Value*>(call.delivered.values));
        }
      });
  co_await settling;
}

Task<void> dense(GroupView& group, SparseCall call) {
  Task<void> body;
  visit_floating(call.dtype, [&]<class T>() { body = dense_as<T>(group, call); });
  return body;
}

AccRoom dense_on_device(std::uint64_t d, std::uint64_t /*k*/) { return {.whole = true, .sums = d}; }

void dense_cost(CriticalPath& path) {
  path.sweep_whole();
  path.reduce(path.shape().d);
}

}  // namespace

const AlgorithmRow kDense{.name = "dense",
                          .description = "the whole vector travels, nothing is left behind",
                          .bounded = false,
                          .whole = dense,
                          .on_device = dense_on_device,
                          .cost = dense_cost,
                          .keeps = Semantics::kExactSum};

}  // namespace gtopk::sparse
