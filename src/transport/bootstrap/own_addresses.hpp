// Bootstrap: the addresses at which other hosts may reach this one. A client finds out by
// connecting which of them work.
#pragma once

#include <string>
#include <vector>

namespace gtopk::bootstrap {

/// The addresses of interfaces that are up: IPv4 before IPv6, loopback last. IPv6 link-local
/// addresses, which are meaningless on other hosts, are excluded.
[[nodiscard]] std::vector<std::string> own_addresses();

}  // namespace gtopk::bootstrap
