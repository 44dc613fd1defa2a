#include "src/torch_backend/contiguous.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "src/torch_backend/device_streams.hpp"

namespace gtopk::torch_backend {
namespace {

/// Whether two elements may share memory: false only if each dimension's stride exceeds the extent
/// of all dimensions with shorter strides.
bool may_overlap(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 5> steps;
  for (std::int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    if (tensor.size(dimension) > 1) {
      steps.emplace_back(tensor.stride(dimension), tensor.size(dimension));
    }
  }
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) {
      return true;
    }
    reach += stride * (size - 1);
  }
  return false;
}

/// Makes the staging buffer of a tensor on a device.
Contiguous staging_buffer(const at::Tensor& tensor) {
  return {tensor, staging_memory(tensor.sizes(), tensor.scalar_type(), tensor.device())};
}

Memory memory_of(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? Memory{}
                                  : cuda_memory(static_cast<std::int16_t>(tensor.device().index()));
}

/// Returns the tensor itself, once all work on the caller's current stream that uses it is done.
Contiguous in_place(const at::Tensor& tensor) {
  DeviceStreams::of(tensor.device()).on_reading([](const c10::Stream&) {});
  return {tensor, tensor};
}

}  // namespace

Buffer Contiguous::buffer(DataType dtype) const {
  return {
      Bytes(static_cast<std::byte*>(memory.mutable_data_ptr()), memory.nbytes(), memory_of(memory)),
      dtype};
}

ConstBuffer Contiguous::read(DataType dtype) const {
  return {ConstBytes(static_cast<const std::byte*>(memory.const_data_ptr()), memory.nbytes(),
                     memory_of(memory)),
          dtype};
}

Buffer part_of(const Buffer& all, std::uint64_t begin, std::uint64_t count) {
  std::byte* const first = all.bytes().data() + gtopk::bytes_of(begin, all.dtype);
  return {first, count, all.dtype, all.memory};
}

bool lies_in_order(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void Contiguous::copy_back() const {
  const BelowAutograd below;
  if (is_copy()) {
    tensor.copy_(memory);
  }
}

Contiguous contiguous(const at::Tensor& tensor, Staging staging) {
  const BelowAutograd below;
  if (staging == Staging::kInPlace) {
    return in_place(tensor);
  }
  if (!tensor.device().is_cpu()) {
    const Contiguous staged = staging_buffer(tensor);
    copy_elements(staged.memory, tensor);
    return staged;
  }
  // Conjugated and negated views are only marked; their memory holds other values.
  const bool lazy = tensor.is_conj() || tensor.is_neg();
  return {tensor, lazy ? tensor.clone(at::MemoryFormat::Contiguous) : tensor.contiguous()};
}

void check_writable(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(!may_overlap(tensor), "gtopk: ", what, " of a tensor that has ",
                    "overlapping elements (sizes ", tensor.sizes(), ", strides ", tensor.strides(),
                    "), so no result can be written to it: pass a copy (clone())");
}

Contiguous writable(const at::Tensor& tensor, const char* what) {
  check_writable(tensor, what);
  return contiguous(tensor);
}

Contiguous destination(const at::Tensor& tensor, const char* what, Staging staging) {
  if (tensor.device().is_cpu()) {
    return writable(tensor, what);
  }
  check_writable(tensor, what);
  return staging == Staging::kInPlace ? in_place(tensor) : staging_buffer(tensor);
}

void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  if (!from.device().is_cpu()) {
    DeviceStreams::of(from.device()).read(to, from);
    return;
  }
  const BelowAutograd below;
  to.view(-1).copy_(from.reshape(-1));
}

}  // namespace gtopk::torch_backend
