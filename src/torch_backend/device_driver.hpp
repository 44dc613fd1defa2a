// Torch backend: the GPU driver (src/gpu), for callers that expect torch's errors.
#pragma once

#include <functional>

#include "src/gpu/driver.hpp"
#include "src/gpu/self_test.hpp"

namespace gtopk::torch_backend {

/// Loaded at the first call, so that this library loads on a machine without a driver. Throws
/// DistBackendError.
[[nodiscard]] const gpu::Driver& device_driver();

/// What GTOPK_CUDA_SELF_TEST says. Throws ValueError.
[[nodiscard]] gpu::SelfTest self_test_of_environment();

/// Rethrows what `call` throws, a gpu::Failure as DistBackendError.
void rethrow_failures(const std::function<void()>& call);

}  // namespace gtopk::torch_backend
