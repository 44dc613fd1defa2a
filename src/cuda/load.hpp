// CUDA: finds and loads the kernel library. Nothing links it, so that programs that use it start on
// machines without a driver and can be built without nvcc.
#pragma once

#include <string>

#include "src/cuda/calls.hpp"

namespace gtopk::cuda {

/// Loads the library that GTOPK_CUDA_KERNELS names, or else libgtopk_cuda.so in `folder`. Returns
/// null if it does not exist, or if the variable is `none`; tensors are then copied to the host and
/// back. Throws std::runtime_error if the library cannot be used, or has another version.
[[nodiscard]] const Calls* load_calls(const std::string& folder);

}  // namespace gtopk::cuda
