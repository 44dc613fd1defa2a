// Torch backend: the library of GPU kernels (src/cuda). It is loaded at the first call with a
// tensor on a device and never linked, so that this library loads without a driver and can be built
// without nvcc.
#pragma once

#include "src/cuda/calls.hpp"

namespace gtopk::torch_backend {

/// Returns the library that GTOPK_CUDA_KERNELS names, or else libgtopk_cuda.so beside this library.
/// Returns null if it does not exist or the variable is `none`; tensors are then copied to the host
/// and back. Throws DistBackendError if a named library cannot be used, or has another version.
[[nodiscard]] const cuda::Calls* device_kernels();

}  // namespace gtopk::torch_backend
