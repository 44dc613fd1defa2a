// Torch backend: the library of kernels for GPUs (src/cuda), loaded when the first tensor on a
// device is handed in and never linked, so that this library loads on a machine without a driver,
// and was built perhaps where there is no nvcc.
#pragma once

#include "src/cuda/calls.hpp"

namespace gtopk::torch_backend {

/// What GTOPK_CUDA_KERNELS names, else libgtopk_cuda.so beside this library; null where that is not
/// there or the variable says `none`: tensors are then copied to the host and back. Throws
/// DistBackendError where a library that is named cannot be used, or is of another version.
[[nodiscard]] const cuda::Calls* device_kernels();

}  // namespace gtopk::torch_backend
