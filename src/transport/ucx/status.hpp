// Transport over UCX: converts UCX's status to an Error on the control path, and to our Status on
// the data path.
#pragma once

#include <ucs/type/status.h>

#include <string_view>

#include "src/transport/base/status.hpp"

namespace gtopk::transport {

/// Throws Error{kTransport}: "UCX failed at <what>: <its reason>".
void throw_unless_ok(ucs_status_t status, std::string_view what);

/// How a message ended.
[[nodiscard]] Status message_status(ucs_status_t status);

}  // namespace gtopk::transport
