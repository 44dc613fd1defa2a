// Sparse, algorithms room: `dense`, which sends all of acc and leaves no residual: the baseline for
// sparse results. acc travels in the accumulation type; collectives/all_reduce.hpp has the order of
// summation.

#include <algorithm>

#include "src/collectives/all_reduce.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/delivery.hpp"
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
  const Segments<T> tensor(call.tensor);
  auto* const residual = static_cast<Value*>(call.residual);
  const auto d = static_cast<std::size_t>(call.d);
  // acc is a copy: the gradient must still be there if ranks turn out to differ.
  auto* const acc = reinterpret_cast<Value*>(group.buffer(d * sizeof(Value)).data());
  group.enter("compress");
  engine::Computation accumulating = group.compute(
      call.d, [&] { static_cast<void>(accumulate<T, Value>(tensor, residual, acc, d)); });
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
        if (!happened) {
          fill_nan(tensor, d);
          return;
        }
        commit_whole<T, Value>(tensor, residual, acc, d, divisor);
        if (call.delivered.values != nullptr) {
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

void dense_cost(CriticalPath& path) {
  path.sweep_whole();
  path.reduce(path.shape().d);
}

}  // namespace

const AlgorithmRow kDense{.name = "dense",
                          .description = "the whole vector travels, nothing is left behind",
                          .bounded = false,
                          .whole = dense,
                          .cost = dense_cost,
                          .keeps = Semantics::kExactSum};

}  // namespace gtopk::sparse
