#include "src/torch_backend/sparse_on_device.hpp"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <mutex>
#include <set>

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

/// Once for each device: a kernel that is loaded when it is first launched may synchronise then,
/// while a stream waits for a result.
void load_kernels(const cuda::Calls& kernels, c10::Device device) {
  static std::mutex mutex;
  static std::set<c10::DeviceIndex> loaded;
  const std::lock_guard lock(mutex);
  if (loaded.contains(device.index())) {
    return;
  }
  Lanes::of(device).refuse_capture();
  const c10::DeviceGuard now_current(device);
  const int error = kernels.load();
  TORCH_CHECK_WITH(DistBackendError, error == 0, "gtopk: ", device,
                   " cannot load the kernels: ", kernels.error_name(error), " (", error, ")");
  loaded.insert(device.index());
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
  load_kernels(*kernels, tensors.pieces.front().device());
  if (options.algorithm == "auto" && tensors.noted) {
    return nullptr;  // an error, of the ordinary call
  }
  if (auto step = DeviceStep::of(*kernels, tensors, options, ranks)) {
    return step;
  }
  return DeviceAcc::of(*kernels, tensors, options, ranks);
}

}  // namespace gtopk::torch_backend
