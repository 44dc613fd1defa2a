// Torch backend: the state that all process groups of this process share. It starts with the first
// group and ends with the last.
#pragma once

#include <memory>

#include "gtopk/communicator.hpp"
#include "src/torch_backend/completer.hpp"

namespace gtopk::torch_backend {

struct Runtime {
  Runtime();

  Completer completer;  // destroyed last because the process passes released objects to it
  std::shared_ptr<Process> process;

  /// The current runtime, or a new one if there is none or its process is spent. Throws
  /// Error{kInvalidArgument} in a child whose parent had one when it forked, because UCX does not
  /// work there.
  [[nodiscard]] static std::shared_ptr<Runtime> get();
};

}  // namespace gtopk::torch_backend
