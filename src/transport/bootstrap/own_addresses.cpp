#include "src/transport/bootstrap/own_addresses.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>

namespace gtopk::bootstrap {
namespace {

struct FreeInterfaces {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

bool is_link_local(const sockaddr& address) {
  if (address.sa_family != AF_INET6) {
    return false;
  }
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

std::string text_of(const sockaddr& address) {
  const socklen_t size = address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return text.data();
}

}  // namespace

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, FreeInterfaces> interfaces(list);
  // Other addresses are in the order of their interfaces.
  using Place = std::tuple<bool, bool, std::size_t>;  // loopback, IPv6, number
  std::vector<std::pair<Place, std::string>> found;
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const sockaddr& address = *each->ifa_addr;
    const bool ipv6 = address.sa_family == AF_INET6;
    if ((address.sa_family != AF_INET && !ipv6) || is_link_local(address)) {
      continue;
    }
    std::string text = text_of(address);
    if (text.empty()) {
      continue;
    }
    found.emplace_back(Place((each->ifa_flags & IFF_LOOPBACK) != 0, ipv6, found.size()),
                       std::move(text));
  }
  std::ranges::sort(found);
  std::vector<std::string> addresses;
  addresses.reserve(found.size());
  for (auto& [place, text] : found) {
    addresses.push_back(std::move(text));
  }
  return addresses;
}

}  // namespace gtopk::bootstrap
