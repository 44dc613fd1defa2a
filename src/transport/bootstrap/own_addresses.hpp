// Bootstrap: the addresses at which other hosts may reach this one. A client finds out which of
// them work by connecting.
#pragma once

#include <string>
#include <vector>

namespace gtopk::bootstrap {

/// Addresses of interfaces that are up, IPv4 before IPv6, loopback last; IPv6 link-local ones,
/// which are meaningless on other hosts, are excluded.
[[nodiscard]] std::vector<std::string> own_addresses();

}  // namespace gtopk::bootstrap
