#include "src/torch_backend/errors.hpp"

#include <string>

#include "src/torch_backend/tensors.hpp"

namespace gtopk::torch_backend {

void rethrow_for_python(const Error& error) {
  const std::string text = "gtopk: " + with_names_of_types(error.what());
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
      TORCH_CHECK_VALUE(false, text);
    case ErrorKind::kUnsupported:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case ErrorKind::kMismatch:
    case ErrorKind::kTimeout:
    case ErrorKind::kPeerFailed:
    case ErrorKind::kAborted:
    case ErrorKind::kTransport:
    case ErrorKind::kBootstrap:
      break;
  }
  C10_THROW_ERROR(DistBackendError, text);
}

c10d::ErrorType error_type(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorKind::kPeerFailed:
    case ErrorKind::kAborted:
    case ErrorKind::kTransport:
      return c10d::ErrorType::COMM_ERROR;
    case ErrorKind::kInvalidArgument:  // the group stays usable after these
    case ErrorKind::kMismatch:
    case ErrorKind::kBootstrap:
    case ErrorKind::kUnsupported:
      break;
  }
  return c10d::ErrorType::SUCCESS;
}

c10d::WorkResult outcome_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    const c10d::ErrorType type = error_type(known.kind());
    if (type != c10d::ErrorType::SUCCESS) {
      return type == c10d::ErrorType::TIMEOUT ? c10d::WorkResult::TIMEOUT
                                              : c10d::WorkResult::COMM_ERROR;
    }
  } catch (...) {
    return c10d::WorkResult::UNKNOWN;
  }
  return c10d::WorkResult::UNKNOWN;
}

}  // namespace gtopk::torch_backend
