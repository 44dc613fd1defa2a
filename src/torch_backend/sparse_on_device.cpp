#include "src/torch_backend/sparse_on_device.hpp"

#include <algorithm>

#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/device_acc.hpp"
#include "src/torch_backend/device_kernels.hpp"
#include "src/torch_backend/device_step.hpp"

namespace gtopk::torch_backend {
namespace {

bool all_in_order(const DeviceTensors& tensors) {
  const c10::Device device = tensors.pieces.front().device();
  const auto fits = [&](const at::Tensor& tensor) {
    return lies_in_order(tensor) && tensor.device() == device;
  };
  return std::ranges::all_of(tensors.pieces, fits) &&
         (!tensors.residual || lies_in_order(*tensors.residual)) &&
         (!tensors.momentum || lies_in_order(*tensors.momentum));
}

}  // namespace

std::shared_ptr<SparseOnDevice> SparseOnDevice::of(const DeviceTensors& tensors,
                                                   const SparseOptions& options,
                                                   std::uint32_t ranks) {
  if (tensors.pieces.front().device().is_cpu() || tensors.d == 0 || !all_in_order(tensors)) {
    return nullptr;
  }
  const cuda::Calls* const kernels = device_kernels();
  if (kernels == nullptr) {
    return nullptr;
  }
  if (auto step = DeviceStep::of(*kernels, tensors, options, ranks)) {
    return step;
  }
  return DeviceAcc::of(*kernels, tensors, options, ranks);
}

}  // namespace gtopk::torch_backend
