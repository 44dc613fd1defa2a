// Torch backend: how many callbacks a future has yet to run. torch has no accessor for that.
#pragma once

#include <cstddef>

#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Returns the number of callbacks, which is 0 once the future is complete. May be called on any
/// thread.
[[nodiscard]] std::size_t callbacks_of(c10::ivalue::Future& future);

}  // namespace gtopk::torch_backend
