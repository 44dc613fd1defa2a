// Transport over UCX: converts UCX's status to an Error on the control path, and to a Status on the
// data path.
#pragma once

#include <ucs/type/status.h>

#include <string_view>

#include "src/transport/base/status.hpp"

namespace gtopk::transport {

/// Throws Error{kTransport} with "UCX failed at <what>: <its reason>", unless the status is UCS_OK.
void throw_unless_ok(ucs_status_t status, std::string_view what);

/// Converts UCX's status to how a message ended.
[[nodiscard]] Status message_status(ucs_status_t status);

}  // namespace gtopk::transport
