// Torch backend: the collectives of c10d whose ranks hold parts of what is reduced or moved.
#include <utility>
#include <vector>

#include "src/torch_backend/backend.hpp"
#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// Kept as long as the network needs it; nothing is copied back.
Contiguous held(const Contiguous& read) { return {read.memory, read.memory}; }

Segment segment(const Contiguous& at) {
  return {at.bytes().data(), static_cast<std::uint64_t>(at.memory.numel())};
}

/// `count` segments of one size.
std::vector<Segment> equal_segments(const Contiguous& at, int count) {
  std::vector<Segment> parts;
  const std::size_t bytes = at.bytes().size() / static_cast<std::size_t>(count);
  const auto elements = static_cast<std::uint64_t>(at.memory.numel() / count);
  for (int part = 0; part < count; ++part) {
    parts.push_back({at.bytes().data() + static_cast<std::size_t>(part) * bytes, elements});
  }
  return parts;
}

void check_list(const std::vector<at::Tensor>& tensors, int size, at::ScalarType dtype,
                const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == static_cast<std::size_t>(size), "gtopk: ", what, " wants ",
                    size, " tensors in its list, one per rank, given ", tensors.size());
  for (const at::Tensor& tensor : tensors) {
    check_dense_cpu(tensor, what);
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "gtopk: ", what,
                      " wants tensors of one dtype, given ", dtype, " and ", tensor.scalar_type());
  }
}

}  // namespace

WorkPointer GtopkBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  static constexpr const char* kWhat = "reduce_scatter";
  const at::Tensor& output = only(outputs, kWhat);
  TORCH_CHECK_VALUE(inputs.size() == 1, "gtopk: reduce_scatter takes one list of inputs, given ",
                    inputs.size());
  check_list(inputs[0], size_, output.scalar_type(), kWhat);
  const at::Tensor& own = inputs[0][static_cast<std::size_t>(rank_)];
  TORCH_CHECK_VALUE(output.numel() == own.numel(), "gtopk: reduce_scatter wants an output like ",
                    "input ", rank_, ", of ", own.numel(), " elements, given ", output.numel());
  const DataType type = data_type(output);
  const ReduceOp op = reduce_op(opts.reduceOp);
  const Contiguous result = writable(output, kWhat);
  std::vector<Contiguous> at{result};
  std::vector<Segment> parts;
  for (const at::Tensor& input : inputs[0]) {
    parts.push_back(segment(at.emplace_back(held(contiguous(input)))));
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::REDUCE_SCATTER, "gtopk:reduce_scatter",
                                             inputs[0], std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(gtopk::reduce_scatter(std::move(parts), segment(result), type, op),
                     std::move(call));
  });
}

WorkPointer GtopkBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  static constexpr const char* kWhat = "reduce_scatter_tensor";
  check_dense_cpu(input, kWhat);
  check_dense_cpu(output, kWhat);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_ && output.dtype() == input.dtype(),
                    "gtopk: reduce_scatter_tensor wants ", size_, " x ", output.numel(), " of ",
                    output.dtype(), " as input, given ", input.numel(), " of ", input.dtype());
  const DataType type = data_type(output);
  const ReduceOp op = reduce_op(opts.reduceOp);
  const Contiguous result = writable(output, kWhat);
  const Contiguous whole = held(contiguous(input));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::_REDUCE_SCATTER_BASE,
                                             "gtopk:_reduce_scatter_base", std::vector{input},
                                             std::vector{result, whole}, std::vector{output});
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(gtopk::reduce_scatter(equal_segments(whole, size_), segment(result), type, op),
                     std::move(call));
  });
}

}  // namespace gtopk::torch_backend
