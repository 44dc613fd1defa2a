// gtopk-info --doctor: what one host knows about its end of a TCP connection.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace gtopk::programs::info {

struct LinkEnd {
  std::string interface{};  ///< empty if the pair does not use TCP
  std::uint32_t mtu = 0;
  std::string tunnel{};              ///< such as "WireGuard"; empty if it is none
  std::string congestion_control{};  ///< the connection's setting
  std::uint64_t receive_buffer = 0;  ///< bytes, at most
  std::uint64_t send_buffer = 0;     ///< bytes, at most
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkEnd, interface, mtu, tunnel, congestion_control,
                                   receive_buffer, send_buffer)

/// Finds this host's end. `lanes` is what UCX uses, such as "tcp/eth0". Must be called while the
/// connection exists, which is assumed to be the busiest one of this process.
[[nodiscard]] LinkEnd link_end_here(const std::string& lanes);

/// Formats an end as "WireGuard, MTU 1420, cubic".
[[nodiscard]] std::string to_text(const LinkEnd& end);

}  // namespace gtopk::programs::info
