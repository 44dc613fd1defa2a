// Transport over UCX: the TCP addresses at which workers accept connections, and the diagnosis by a
// plain connection when UCX only says that it has failed.
#pragma once

#include <sys/socket.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/transport/base/clock.hpp"

namespace gtopk::transport {

struct TcpAddress {
  std::string host;  ///< in numeric form
  std::uint16_t port = 0;

  [[nodiscard]] bool is_ipv6() const { return host.find(':') != std::string::npos; }
  [[nodiscard]] bool is_loopback() const { return host.starts_with("127.") || host == "::1"; }
  auto operator<=>(const TcpAddress&) const = default;
};

/// Converts an address; returns nullopt if it is neither IPv4 nor IPv6.
[[nodiscard]] std::optional<TcpAddress> to_tcp_address(const sockaddr_storage& address);

/// Addresses as text: "10.0.0.1:4000, [fd77::1]:4001".
[[nodiscard]] std::string to_string(const std::vector<TcpAddress>& addresses);

/// Connects to all of them at the same time, and returns how each attempt ended and which setting
/// helps; "" without addresses. May be called on any thread; takes `at_most`.
[[nodiscard]] std::string diagnose_connections(const std::vector<TcpAddress>& addresses,
                                               Duration at_most);

/// If all addresses of `here` are of one family and all of `there` are of the other, says so and
/// which setting helps; otherwise returns "".
[[nodiscard]] std::string diagnose_families(const std::vector<TcpAddress>& here,
                                            const std::vector<TcpAddress>& there);

}  // namespace gtopk::transport
