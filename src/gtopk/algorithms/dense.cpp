#include "gtopk/algorithms/dense.hpp"

#include <algorithm>

#include "collectives/all_reduce.hpp"
#include "gtopk/residual/commit.hpp"
#include "gtopk/value/accumulation.hpp"
#include "gtopk/value/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

using engine::GroupView;
using engine::Task;

template <class Value>
bool finite(Value value) {
  return is_finite_key<Value>(magnitude_key(value));
}

}  // namespace

template <class T>
Task<void> dense(GroupView& group, SparseCall call) {
  using Value = Accumulation<T>;
  const collectives::Signature signature = signature_of(call);
  auto* const tensor = static_cast<T*>(call.tensor);
  auto* const residual = static_cast<Value*>(call.residual);
  const auto d = static_cast<std::size_t>(call.d);
  // acc has a place of its own: the gradient is still there when ranks turn out to differ.
  auto* const acc = reinterpret_cast<Value*>(group.buffer(d * sizeof(Value)).data());
  engine::Computation accumulating =
      group.compute([&] { static_cast<void>(accumulate(tensor, residual, acc, d)); });
  co_await accumulating;

  const DataType type = accumulation_type(call.dtype);
  Task<void> reducing = collectives::all_reduce(group, signature, acc, d, type, ReduceOp::kSum);
  co_await reducing;

  // A non-finite acc anywhere makes a non-finite sum, which every rank sees.
  const auto divisor = static_cast<Value>(call.options.op == ReduceOp::kAvg ? group.size() : 1);
  engine::Computation committing = group.compute([&] {
    const KeepDenormals guard;
    bool all_finite = true;
    for (std::size_t i = 0; i < d; ++i) {
      all_finite &= finite(acc[i]) && finite(widen(narrow<T>(acc[i] / divisor)));
    }
    if (!all_finite) {
      fill_nan(tensor, d);
      return;
    }
    for (std::size_t i = 0; i < d; ++i) tensor[i] = narrow<T>(acc[i] / divisor);
    if (residual != nullptr) std::fill_n(residual, d, Value{0});
  });
  co_await committing;
}

template Task<void> dense<float>(GroupView&, SparseCall);
template Task<void> dense<double>(GroupView&, SparseCall);
template Task<void> dense<Bfloat16>(GroupView&, SparseCall);
template Task<void> dense<Float16>(GroupView&, SparseCall);

}  // namespace gtopk::sparse
