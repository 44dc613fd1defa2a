// gtopk-info --doctor: what one host knows of its end of a TCP connection.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace gtopk::programs::info {

struct LinkEnd {
  std::string interface{};  ///< empty: the pair does not talk over TCP
  std::uint32_t mtu = 0;
  std::string tunnel{};              ///< "WireGuard", for example; empty: it is none
  std::string congestion_control{};  ///< the connection's own
  std::uint64_t receive_buffer = 0;  ///< bytes, at most
  std::uint64_t send_buffer = 0;     ///< likewise
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkEnd, interface, mtu, tunnel, congestion_control,
                                   receive_buffer, send_buffer)

/// lanes: what UCX uses, like "tcp/eth0". Call it while the connection exists: it is taken to be
/// the one of this process that has carried most.
[[nodiscard]] LinkEnd link_end_here(const std::string& lanes);

/// "WireGuard, MTU 1420, cubic"
[[nodiscard]] std::string to_text(const LinkEnd& end);

}  // namespace gtopk::programs::info
