// Torch backend: the collectives of c10d that take several tensors and give one Work. The tensors
// are laid side by side, and travel as one.
#include <cstdint>
#include <utility>
#include <vector>

#include "src/torch_backend/backend.hpp"
#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

void check_one_dtype(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(!tensors.empty(), "gtopk: ", what, " of no tensors");
  for (const at::Tensor& tensor : tensors) {
    check_dense_cpu(tensor, what);
    TORCH_CHECK_VALUE(tensor.dtype() == tensors.front().dtype(), "gtopk: ", what,
                      " takes tensors of one dtype, given ", tensors.front().dtype(), " and ",
                      tensor.dtype());
  }
}

void check_as_many(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                   const char* what) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "gtopk: ", what,
                    " takes as many outputs as inputs, given ", outputs.size(), " and ",
                    inputs.size());
}

std::vector<std::uint64_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(static_cast<std::uint64_t>(tensor.numel()));
  }
  return sizes;
}

/// Memory in which tensors of one dtype lie side by side, and who is copied back from where.
struct SideBySide {
  SideBySide(const std::vector<at::Tensor>& tensors, const char* what) {
    const BelowAutograd below;
    std::int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) {
      check_writable(tensor, what);
      elements += tensor.numel();
    }
    memory = at::empty({elements}, tensors.front().options());
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      at.push_back({tensor, memory.narrow(0, begin, tensor.numel()).view(tensor.sizes())});
      begin += tensor.numel();
    }
  }

  at::Tensor memory;
  std::vector<Contiguous> at;
};

}  // namespace

WorkPointer GtopkBackend::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                          std::vector<at::Tensor>& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  static constexpr const char* kWhat = "reduce_scatter_tensor_coalesced";
  check_one_dtype(outputs, kWhat);
  check_one_dtype(inputs, kWhat);
  check_as_many(outputs, inputs, kWhat);
  const DataType type = data_type(outputs.front());
  const ReduceOp op = reduce_op(opts.reduceOp);
  std::vector<at::Tensor> rows;  // one per rank
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(
        inputs[i].numel() == outputs[i].numel() * size_ && inputs[i].dtype() == outputs[i].dtype(),
        "gtopk: ", kWhat, " wants ", size_, " x ", outputs[i].numel(), " of ", outputs[i].dtype(),
        " as input ", i, ", given ", inputs[i].numel(), " of ", inputs[i].dtype());
    const BelowAutograd below;
    rows.push_back(inputs[i].reshape({size_, outputs[i].numel()}));
  }
  SideBySide results(outputs, kWhat);
  const auto side_by_side = [&] {
    const BelowAutograd below;
    return at::cat(rows, 1);
  };
  const Contiguous all = contiguous(side_by_side());
  std::vector<Segment> parts;
  const auto elements = static_cast<std::uint64_t>(results.memory.numel());
  for (int rank = 0; rank < size_; ++rank) {
    parts.push_back(
        {all.bytes().data() + static_cast<std::size_t>(rank) * results.memory.nbytes(), elements});
  }
  const Segment own{results.memory.mutable_data_ptr(), elements};
  std::vector<Contiguous> at = std::move(results.at);
  at.push_back({all.memory, all.memory});
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::COALESCED,
                                             "gtopk:reduce_scatter_tensor_coalesced", inputs,
                                             std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(
        coalesced(gtopk::reduce_scatter(std::move(parts), own, type, op), sizes_of(outputs)),
        std::move(call));
  });
}

}  // namespace gtopk::torch_backend
