// Transport, base: how one message ended. The data path uses a status; higher layers turn errors
// into exceptions.
#pragma once

#include <cstdint>
#include <string_view>

namespace gtopk::transport {

enum class Status : std::uint8_t {
  kOk,
  kInProgress,
  kCancelled,   ///< a receive cancelled by this rank, or a send given up with its endpoint
  kTruncated,   ///< the message was longer than the posted buffer, whose contents are undefined
  kPeerFailed,  ///< the endpoint to the peer is broken
  kFailed,      ///< anything else that the network library reports
};

[[nodiscard]] std::string_view to_string(Status status);

}  // namespace gtopk::transport
