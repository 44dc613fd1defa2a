// Room: tools/netlab/switch. What the switch reads in a frame: addresses and its kind. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netlab {

inline constexpr std::size_t kEthernetHeader = 14;

/// A hardware address, its first byte the highest of 48 bits. At 0 is a frame's destination, at 6
/// its source.
[[nodiscard]] constexpr std::uint64_t address_at(std::span<const std::byte> frame,
                                                 std::size_t offset) {
  std::uint64_t address = 0;
  for (const std::byte byte : frame.subspan(offset, 6)) {
    address = address << 8U | std::to_integer<std::uint64_t>(byte);
  }
  return address;
}

/// Whether it goes to more than one host: the lowest bit of the first byte.
[[nodiscard]] constexpr bool is_multicast(std::uint64_t address) {
  return (address >> 40U & 1U) != 0;
}

/// Whether the frame asks for a neighbour's hardware address, or says it: ARP, or ICMPv6 133 to
/// 137. Between sites no such question crosses the link, so these are neither delayed nor lost.
[[nodiscard]] constexpr bool is_neighbour_discovery(std::span<const std::byte> frame) {
  const auto at = [&](std::size_t offset) { return std::to_integer<unsigned>(frame[offset]); };
  const unsigned kind = at(12) << 8U | at(13);
  if (kind == 0x0806) {
    return true;
  }
  constexpr std::size_t kNextHeader = kEthernetHeader + 6;
  constexpr std::size_t kType = kEthernetHeader + 40;
  return kind == 0x86DD && frame.size() > kType && at(kNextHeader) == 58 && at(kType) >= 133 &&
         at(kType) <= 137;
}

}  // namespace netlab
