// Torch backend: the core's errors as torch and Python know them.
#pragma once

#include <exception>

#include "gtopk/error.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Throws what Python expects: ValueError for bad arguments, NotImplementedError, DistBackendError
/// for the rest.
[[noreturn]] void rethrow_for_python(const Error& error);

/// What ends a group, as Backend::getError() says it; SUCCESS for what it survives.
[[nodiscard]] c10d::ErrorType error_type(ErrorKind kind);

/// How an operation ended that ended with this error.
[[nodiscard]] c10d::WorkResult outcome_of(const std::exception_ptr& error);

}  // namespace gtopk::torch_backend
