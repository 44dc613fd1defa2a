// Tests of the networks to which interfaces belong.
#include "src/transport/topology/networks.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

namespace gtopk::topology {
namespace {

std::string network(const char* address, const char* mask) {
  sockaddr_in at{};
  sockaddr_in of{};
  at.sin_family = of.sin_family = AF_INET;
  inet_pton(AF_INET, address, &at.sin_addr);
  inet_pton(AF_INET, mask, &of.sin_addr);
  return network_of(reinterpret_cast<sockaddr&>(at), reinterpret_cast<sockaddr&>(of));
}

std::string network6(const char* address, const char* mask) {
  sockaddr_in6 at{};
  sockaddr_in6 of{};
  at.sin6_family = of.sin6_family = AF_INET6;
  inet_pton(AF_INET6, address, &at.sin6_addr);
  inet_pton(AF_INET6, mask, &of.sin6_addr);
  return network_of(reinterpret_cast<sockaddr&>(at), reinterpret_cast<sockaddr&>(of));
}

TEST(Networks, AreAddressesWithoutTheirHosts) {
  EXPECT_EQ(network("10.1.2.3", "255.255.0.0"), "10.1.0.0/16");
  EXPECT_EQ(network("10.1.2.131", "255.255.255.128"), "10.1.2.128/25");
  EXPECT_EQ(network6("fd77::5:1", "ffff:ffff:ffff:ffff::"), "fd77::/64");
  // Every link has these.
  EXPECT_EQ(network("169.254.7.1", "255.255.0.0"), "");
  EXPECT_EQ(network6("fe80::1", "ffff:ffff:ffff:ffff::"), "");
  const sockaddr other{.sa_family = AF_UNIX, .sa_data = {}};
  EXPECT_EQ(network_of(other, other), "");
}

TEST(Networks, OfThisMachineIncludeThatOfLoopback) {
  EXPECT_THAT(networks_here()["lo"], testing::Contains("127.0.0.0/8"));
}

}  // namespace
}  // namespace gtopk::topology
