// Torch backend: converts the core's errors to errors of torch and Python.
#pragma once

#include <exception>

#include "gtopk/error.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Throws the error that Python expects: ValueError for bad arguments, NotImplementedError, or
/// DistBackendError for the rest.
[[noreturn]] void rethrow_for_python(const Error& error);

/// The value by which Backend::getError() reports an error that ends a group; SUCCESS if the group
/// survives it.
[[nodiscard]] c10d::ErrorType error_type(ErrorKind kind);

/// The result of an operation that ended with this error.
[[nodiscard]] c10d::WorkResult outcome_of(const std::exception_ptr& error);

}  // namespace gtopk::torch_backend
