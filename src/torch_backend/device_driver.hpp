// Torch backend: the driver of GPUs (src/gpu), for callers that torch's errors are for.
#pragma once

#include <functional>

#include "src/gpu/driver.hpp"

namespace gtopk::torch_backend {

/// Loaded at the first call, so that this library loads on a machine without one. Throws
/// DistBackendError.
[[nodiscard]] const gpu::Driver& device_driver();

/// Throws what `call` throws, a gpu::Failure as DistBackendError.
void rethrow_failures(const std::function<void()>& call);

}  // namespace gtopk::torch_backend
