// What the lab's switch reads in a frame.
#include "ethernet.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace netlab {
namespace {

std::vector<std::byte> of_kind(std::uint16_t kind, std::size_t size) {
  std::vector<std::byte> bytes(size);
  bytes.at(12) = std::byte(kind >> 8U);
  bytes.at(13) = std::byte(kind & 0xFFU);
  return bytes;
}

TEST(Ethernet, AddressesAreReadInTheOrderOfTheirBytes) {
  std::vector<std::byte> bytes = of_kind(0x0800, 60);
  bytes[0] = std::byte{0x02};
  bytes[5] = std::byte{0x07};
  bytes[6] = std::byte{0xAA};
  EXPECT_EQ(address_at(bytes, 0), 0x020000000007U);
  EXPECT_EQ(address_at(bytes, 6), 0xAA0000000000U);
}

TEST(Ethernet, MulticastIsTheLowestBitOfTheFirstByte) {
  EXPECT_TRUE(is_multicast(0xFFFFFFFFFFFFU));
  EXPECT_TRUE(is_multicast(0x3333000000FFU));
  EXPECT_FALSE(is_multicast(0x02FFFFFFFFFFU));
}

TEST(Ethernet, NeighbourDiscoveryIsArpAndFiveKindsOfIcmpForIpv6) {
  EXPECT_TRUE(is_neighbour_discovery(of_kind(0x0806, 42)));
  EXPECT_FALSE(is_neighbour_discovery(of_kind(0x0800, 60)));
  for (unsigned type = 0; type < 256; ++type) {
    std::vector<std::byte> bytes = of_kind(0x86DD, 86);
    bytes[20] = std::byte{58};
    bytes[54] = std::byte(type);
    EXPECT_EQ(is_neighbour_discovery(bytes), type >= 133 && type <= 137) << type;
    bytes[20] = std::byte{6};  // TCP
    EXPECT_FALSE(is_neighbour_discovery(bytes)) << type;
  }
}

TEST(Ethernet, FrameCutBeforeIcmpType_IsNoNeighbourDiscovery) {
  std::vector<std::byte> bytes = of_kind(0x86DD, 54);
  bytes[20] = std::byte{58};
  EXPECT_FALSE(is_neighbour_discovery(bytes));
}

}  // namespace
}  // namespace netlab
