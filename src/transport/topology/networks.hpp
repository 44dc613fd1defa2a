// Topology: the networks to which this machine's interfaces belong, according to the kernel.
#pragma once

#include <sys/socket.h>

#include <map>
#include <string>
#include <vector>

namespace gtopk::topology {

/// Returns the network of an address and a netmask, such as "10.1.0.0/16". Returns an empty string
/// for anything but IPv4 and IPv6, and for addresses that are local to each link (169.254/16,
/// fe80::/10).
[[nodiscard]] std::string network_of(const sockaddr& address, const sockaddr& mask);

/// Returns the networks of each interface that is up.
[[nodiscard]] std::map<std::string, std::vector<std::string>> networks_here();

}  // namespace gtopk::topology
