// Torch backend: the launcher (src/gpu/launcher.hpp) of each device.
#pragma once

#include "src/gpu/launcher.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Returns the launcher, which is created at the first call for the lifetime of the process. Must
/// be called on a thread that may call the driver.
[[nodiscard]] gpu::Launcher& launcher_of(c10::Device device);

}  // namespace gtopk::torch_backend
