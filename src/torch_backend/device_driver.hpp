// Torch backend: the GPU driver (src/gpu), for callers that expect torch's errors.
#pragma once

#include <functional>

#include "src/gpu/driver.hpp"
#include "src/gpu/self_test.hpp"

namespace gtopk::torch_backend {

/// Returns the driver, which is loaded at the first call, so that this library loads on a machine
/// without a driver. Throws DistBackendError.
[[nodiscard]] const gpu::Driver& device_driver();

/// The setting in GTOPK_CUDA_SELF_TEST. Throws ValueError.
[[nodiscard]] gpu::SelfTest self_test_of_environment();

/// Runs `call` and rethrows what it throws, but a gpu::Failure as DistBackendError.
void rethrow_failures(const std::function<void()>& call);

}  // namespace gtopk::torch_backend
