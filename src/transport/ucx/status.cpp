#include "src/transport/ucx/status.hpp"

#include <fmt/format.h>

#include <string>

#include "gtopk/error.hpp"
#include "src/transport/base/shortage.hpp"

namespace gtopk::transport {

void throw_unless_ok(ucs_status_t status, std::string_view what) {
  if (status != UCS_OK) {
    const std::string shortage = any_shortage();
    throw Error(ErrorKind::kTransport,
                fmt::format("UCX failed at {}: {}{}{}", what, ucs_status_string(status),
                            shortage.empty() ? "" : ": ", shortage));
  }
}

Status message_status(ucs_status_t status) {
  // This is not a switch because ucs_status_t has ranges of codes for broken links and endpoints.
  if (status == UCS_OK) {
    return Status::kOk;
  }
  if (status == UCS_ERR_MESSAGE_TRUNCATED) {
    return Status::kTruncated;
  }
  if (status == UCS_ERR_CANCELED) {
    return Status::kCancelled;
  }
  const bool broken_link =
      status <= UCS_ERR_FIRST_LINK_FAILURE && status >= UCS_ERR_LAST_LINK_FAILURE;
  const bool broken_endpoint =
      status <= UCS_ERR_FIRST_ENDPOINT_FAILURE && status >= UCS_ERR_LAST_ENDPOINT_FAILURE;
  if (broken_link || broken_endpoint || status == UCS_ERR_CONNECTION_RESET ||
      status == UCS_ERR_NOT_CONNECTED || status == UCS_ERR_UNREACHABLE ||
      status == UCS_ERR_TIMED_OUT || status == UCS_ERR_REJECTED || status == UCS_ERR_IO_ERROR) {
    return Status::kPeerFailed;
  }
  return Status::kFailed;
}

}  // namespace gtopk::transport
