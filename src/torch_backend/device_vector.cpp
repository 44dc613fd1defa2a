#include "src/torch_backend/device_vector.hpp"

#include <algorithm>
#include <utility>

namespace gtopk::torch_backend {

at::Tensor bytes_on(c10::Device device, std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

DeviceVector::DeviceVector(const cuda::Calls& kernels, DeviceTensors tensors)
    : kernels_(kernels),
      tensors_(std::move(tensors)),
      lanes_(Lanes::of(tensors_.pieces.front().device())) {}

void DeviceVector::lay_out(const at::Tensor& pinned, std::size_t at, std::uint32_t index_bytes) {
  pinned_ = pinned;
  table_at_ = at;
  acc_.index_bytes = index_bytes;
  number(reinterpret_cast<cuda::PieceOf*>(bytes_of(pinned) + at));
  table_ = bytes_on(lanes_.device(), std::max<std::size_t>(acc_.count, 1) * sizeof(cuda::PieceOf));
  acc_.pieces = reinterpret_cast<const cuda::PieceOf*>(bytes_of(table_));
}

void DeviceVector::number(cuda::PieceOf* table) {
  const std::size_t value_bytes = tensors_.dtype == DataType::kFloat64 ? 8 : 4;
  std::byte* const residual = tensors_.residual ? bytes_of(*tensors_.residual) : nullptr;
  std::uint64_t begin = 0;
  std::uint32_t count = 0;
  for (const at::Tensor& tensor : tensors_.pieces) {
    const auto size = static_cast<std::uint64_t>(tensor.numel());
    if (size != 0) {
      table[count++] = {bytes_of(tensor),
                        residual == nullptr ? nullptr : residual + begin * value_bytes, begin, size,
                        0};
    }
    begin += size;
  }
  acc_.dtype = tensors_.dtype;
  acc_.count = count;
  acc_.tiles = kernels_.number_tiles(table, count);
  acc_.d = tensors_.d;
}

void DeviceVector::hand_over() const {
  table_.copy_(pinned_.narrow(0, static_cast<std::int64_t>(table_at_), table_.numel()),
               /*non_blocking=*/true);
}

void DeviceVector::hold_pinned() const {
  // torch notes what is copied from pinned memory, and not what else is done with it.
  table_.narrow(0, 0, 8).copy_(pinned_.narrow(0, static_cast<std::int64_t>(table_at_), 8),
                               /*non_blocking=*/true);
}

void DeviceVector::in_use_on(const c10::Stream& stream) const {
  for (const at::Tensor& each : tensors_.pieces) {
    lanes_.in_use_on(each, stream);
  }
  for (const auto& each : {tensors_.residual, tensors_.momentum}) {
    if (each) {
      lanes_.in_use_on(*each, stream);
    }
  }
  lanes_.in_use_on(table_, stream);
}

void DeviceVector::check(int error, const char* what) const {
  TORCH_CHECK_WITH(DistBackendError, error == 0, "gtopk: ", lanes_.device(), " cannot ", what, ": ",
                   kernels_.error_name(error), " (", error, ")");
}

}  // namespace gtopk::torch_backend
