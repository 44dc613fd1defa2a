// Topology: the networks to which this machine's interfaces belong, as the kernel tells them.
#pragma once

#include <sys/socket.h>

#include <map>
#include <string>
#include <vector>

namespace gtopk::topology {

/// "10.1.0.0/16" of an address and a netmask; empty for what is neither IPv4 nor IPv6, and for
/// addresses that every link has anew (169.254/16, fe80::/10).
[[nodiscard]] std::string network_of(const sockaddr& address, const sockaddr& mask);

/// By interface, those that are up.
[[nodiscard]] std::map<std::string, std::vector<std::string>> networks_here();

}  // namespace gtopk::topology
