#include "src/transport/topology/networks.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include <fmt/format.h>

namespace gtopk::topology {
namespace {

/// The bytes of an address, in network order.
template <std::size_t Bytes, class Address>
std::array<unsigned char, Bytes> bytes_of(const Address& address) {
  std::array<unsigned char, Bytes> bytes{};
  static_assert(sizeof(Address) == Bytes);
  std::memcpy(bytes.data(), &address, Bytes);
  return bytes;
}

/// Returns "<address>/<bits of the mask>"; the address has no bits outside the mask.
template <std::size_t Bytes>
std::string network(int family, std::array<unsigned char, Bytes> address,
                    const std::array<unsigned char, Bytes>& mask) {
  int bits = 0;
  for (std::size_t i = 0; i < Bytes; ++i) {
    address[i] = address[i] & mask[i];
    bits += std::popcount(mask[i]);
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(family, address.data(), text.data(), text.size());
  return fmt::format("{}/{}", text.data(), bits);
}

}  // namespace

std::string network_of(const sockaddr& address, const sockaddr& mask) {
  if (address.sa_family == AF_INET) {
    const auto& at = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    const auto& of = reinterpret_cast<const sockaddr_in&>(mask).sin_addr;
    constexpr std::uint32_t kLinkLocal = 0xa9fe0000;
    const bool local = (ntohl(at.s_addr) & 0xffff0000U) == kLinkLocal;
    return local ? "" : network(AF_INET, bytes_of<4>(at), bytes_of<4>(of));
  }
  if (address.sa_family == AF_INET6) {
    const auto& at = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    const auto& of = reinterpret_cast<const sockaddr_in6&>(mask).sin6_addr;
    return IN6_IS_ADDR_LINKLOCAL(&at) ? "" : network(AF_INET6, bytes_of<16>(at), bytes_of<16>(of));
  }
  return "";
}

std::map<std::string, std::vector<std::string>> networks_here() {
  std::map<std::string, std::vector<std::string>> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return found;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> held(first, freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_netmask == nullptr ||
        (each->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    std::string network = network_of(*each->ifa_addr, *each->ifa_netmask);
    if (!network.empty()) {
      found[each->ifa_name].push_back(std::move(network));
    }
  }
  return found;
}

}  // namespace gtopk::topology
