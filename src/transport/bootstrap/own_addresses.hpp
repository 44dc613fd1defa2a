// Bootstrap: the addresses under which other hosts may reach this one. Which of them do is found
// out by whoever connects.
#pragma once

#include <string>
#include <vector>

namespace gtopk::bootstrap {

/// Of the interfaces that are up, IPv4 before IPv6, loopback last; link-local ones of IPv6, which
/// mean nothing elsewhere, are left out.
[[nodiscard]] std::vector<std::string> own_addresses();

}  // namespace gtopk::bootstrap
