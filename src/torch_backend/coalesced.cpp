// Torch backend: c10d's collectives that take several tensors and return one Work. The tensors are
// placed side by side and sent as one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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
  TORCH_CHECK_VALUE(!tensors.empty(), "gtopk: ", what, " takes at least one tensor, given none");
  for (const at::Tensor& tensor : tensors) {
    check_dense(tensor, what);
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
  sizes.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(static_cast<std::uint64_t>(tensor.numel()));
  }
  return sizes;
}

/// Memory that holds tensors of one dtype contiguously, and the tensors to copy back to.
struct SideBySide {
  SideBySide(const std::vector<at::Tensor>& tensors, const char* what) {
    const BelowAutograd below;
    std::int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) {
      check_writable(tensor, what);
      elements += tensor.numel();
    }
    memory = staging_memory({elements}, tensors.front().scalar_type(), tensors.front().device());
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      at.push_back({tensor, memory.narrow(0, begin, tensor.numel()).view(tensor.sizes())});
      begin += tensor.numel();
    }
  }

  at::Tensor memory;
  std::vector<Contiguous> at;
};

/// Buffers for gathering tensors of any types, as bytes in P equal buffers in which each tensor is
/// aligned for its elements.
class GatherBuffers {
 public:
  GatherBuffers(const std::vector<at::Tensor>& inputs, int rank, int size, const char* what)
      : inputs_(inputs), size_(size) {
    std::int64_t end = 0;
    for (const at::Tensor& input : inputs) {
      check_dense(input, what);
      begins_.push_back(end);
      end += (static_cast<std::int64_t>(input.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
    }
    end = std::max(end, kAlignment);  // memory of no bytes could not be viewed as another type
    const BelowAutograd below;
    memory_ = staging_memory({size, end}, at::kByte, inputs.front().device());
    memory_.zero_();  // padding is sent too
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      copy_elements(rows(i)[rank], inputs[i]);
    }
  }

  /// The rows of input i, one per rank.
  [[nodiscard]] at::Tensor rows(std::size_t i) const {
    const BelowAutograd below;
    const at::Tensor& input = inputs_[i];
    return memory_.narrow(1, begins_[i], static_cast<std::int64_t>(input.nbytes()))
        .view(input.scalar_type())
        .view({size_, input.numel()});
  }

  [[nodiscard]] std::vector<std::span<std::byte>> spans() const {
    std::vector<std::span<std::byte>> buffers;
    const std::span<std::byte> all{static_cast<std::byte*>(memory_.mutable_data_ptr()),
                                   memory_.nbytes()};
    const std::size_t bytes = all.size() / static_cast<std::size_t>(size_);
    buffers.reserve(static_cast<std::size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) {
      buffers.push_back(all.subspan(static_cast<std::size_t>(rank) * bytes, bytes));
    }
    return buffers;
  }

 private:
  static constexpr std::int64_t kAlignment = 16;  // alignment of the widest element type

  const std::vector<at::Tensor>& inputs_;
  int size_;
  std::vector<std::int64_t> begins_;
  at::Tensor memory_;
};

/// Returns the output as P rows of equal size, in its own memory.
at::Tensor rows_of(const at::Tensor& output, int size, const char* what) {
  const BelowAutograd below;
  if (output.is_contiguous()) {
    return output.view({size, output.numel() / size});
  }
  TORCH_CHECK_VALUE(output.size(0) % size == 0, "gtopk: ", what, " needs an output that is ",
                    "contiguous or has a multiple of ", size, " rows, given sizes ", output.sizes(),
                    ", strides ", output.strides());
  return output.unflatten(0, {size, output.size(0) / size});
}

/// Returns the type on which ranks agree: the common type, if there is one.
DataType type_of_all(const std::vector<at::Tensor>& tensors) {
  const DataType type = type_to_move(tensors.front());
  const auto alike = [&](const at::Tensor& each) { return type_to_move(each) == type; };
  return std::ranges::all_of(tensors, alike) ? type : DataType::kUint8;
}

/// The size of each tensor in bytes.
std::vector<std::uint64_t> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(tensor.nbytes());
  }
  return sizes;
}

}  // namespace

WorkPointer GtopkBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                              const c10d::AllreduceCoalescedOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "all_reduce_coalesced";
  check_one_dtype(tensors, kWhat);
  const DataType type = data_type(tensors.front());
  const auto [op, factor] = reduction(opts.reduceOp);
  SideBySide all(tensors, kWhat);
  for (const Contiguous& each : all.at) {
    copy_elements(each.memory, each.tensor);
  }
  void* const data = all.memory.mutable_data_ptr();
  const auto d = static_cast<std::uint64_t>(all.memory.numel());
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE_COALESCED, "gtopk:all_reduce",
                                             tensors, std::move(all.at), tensors);
  return run(std::move(work), opts.timeout, [&] {
    return coalesced(gtopk::all_reduce(data, d, type, op, factor), sizes_of(tensors));
  });
}

WorkPointer GtopkBackend::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                              std::vector<at::Tensor>& inputs,
                                              const c10d::AllgatherOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "all_gather_coalesced";
  TORCH_CHECK_VALUE(!inputs.empty(), "gtopk: ", kWhat, " takes at least one tensor, given none");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size_), "gtopk: ", kWhat, " needs ",
                    size_, " lists of outputs, one per rank, given ", outputs.size());
  const GatherBuffers buffers(inputs, rank_, size_, kWhat);
  std::vector<Contiguous> at;
  std::vector<at::Tensor> result;
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
    check_as_many(outputs[rank], inputs, kWhat);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor& output = outputs[rank][i];
      check_dense(output, kWhat);
      check_writable(output, kWhat);
      TORCH_CHECK_VALUE(output.numel() == inputs[i].numel() && output.dtype() == inputs[i].dtype(),
                        "gtopk: ", kWhat, " needs output ", i, " of rank ", rank,
                        " to match input ", i, " (", inputs[i].numel(), " of ", inputs[i].dtype(),
                        "), given ", output.numel(), " of ", output.dtype());
      const BelowAutograd below;
      const auto row = static_cast<std::int64_t>(rank);
      at.push_back({output, buffers.rows(i)[row].view(output.sizes())});
      result.push_back(output);
    }
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLGATHER_COALESCED, "gtopk:all_gather",
                                             inputs, std::move(at), std::move(result));
  return run(std::move(work), opts.timeout, [&] {
    return coalesced(all_gather(Buffers(buffers.spans(), type_of_all(inputs))), bytes_of(inputs));
  });
}

WorkPointer GtopkBackend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                          std::vector<at::Tensor>& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "all_gather_into_tensor_coalesced";
  TORCH_CHECK_VALUE(!inputs.empty(), "gtopk: ", kWhat, " takes at least one tensor, given none");
  check_as_many(outputs, inputs, kWhat);
  const GatherBuffers buffers(inputs, rank_, size_, kWhat);
  std::vector<Contiguous> at;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_dense(outputs[i], kWhat);
    check_writable(outputs[i], kWhat);
    TORCH_CHECK_VALUE(
        outputs[i].numel() == inputs[i].numel() * size_ && outputs[i].dtype() == inputs[i].dtype(),
        "gtopk: ", kWhat, " needs ", size_, " x ", inputs[i].numel(), " elements of ",
        inputs[i].dtype(), " as output ", i, ", given ", outputs[i].numel(), " of ",
        outputs[i].dtype());
    const at::Tensor rows = rows_of(outputs[i], size_, kWhat);
    const BelowAutograd below;
    at.push_back({rows, buffers.rows(i).view(rows.sizes())});
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::COALESCED,
                                             "gtopk:all_gather_into_tensor_coalesced", inputs,
                                             std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&] {
    return coalesced(all_gather(Buffers(buffers.spans(), type_of_all(inputs))), bytes_of(inputs));
  });
}

WorkPointer GtopkBackend::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                          std::vector<at::Tensor>& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "reduce_scatter_tensor_coalesced";
  check_one_dtype(outputs, kWhat);
  check_one_dtype(inputs, kWhat);
  check_as_many(outputs, inputs, kWhat);
  const DataType type = data_type(outputs.front());
  const auto [op, factor] = reduction(opts.reduceOp);
  std::vector<at::Tensor> rows;  // one per rank
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(
        inputs[i].numel() == outputs[i].numel() * size_ && inputs[i].dtype() == outputs[i].dtype(),
        "gtopk: ", kWhat, " needs ", size_, " x ", outputs[i].numel(), " elements of ",
        outputs[i].dtype(), " as input ", i, ", given ", inputs[i].numel(), " of ",
        inputs[i].dtype());
    const BelowAutograd below;
    rows.push_back(inputs[i].reshape({size_, outputs[i].numel()}));
  }
  SideBySide results(outputs, kWhat);
  const auto side_by_side = [&] {
    const BelowAutograd below;
    return at::cat(rows, 1);
  };
  const Contiguous all = contiguous(side_by_side());
  ConstBuffers parts;
  const auto elements = static_cast<std::uint64_t>(results.memory.numel());
  for (std::uint64_t rank = 0; rank < static_cast<std::uint64_t>(size_); ++rank) {
    parts.push_back(part_of(all.buffer(type), rank * elements, elements));
  }
  const Buffer own{results.memory.mutable_data_ptr(), elements, type};
  std::vector<Contiguous> at = std::move(results.at);
  at.push_back({all.memory, all.memory});
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::COALESCED,
                                             "gtopk:reduce_scatter_tensor_coalesced", inputs,
                                             std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&] {
    return coalesced(gtopk::reduce_scatter(parts, own, op, factor), sizes_of(outputs));
  });
}

}  // namespace gtopk::torch_backend
