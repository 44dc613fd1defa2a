// What the switch reads in a frame: addresses, its kind and its connection. This is pure.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace netlab {

inline constexpr std::size_t kEthernetHeader = 14;

/// Returns a hardware address, whose first byte is the highest of 48 bits. A frame's destination is
/// at 0, and its source at 6.
[[nodiscard]] constexpr std::uint64_t address_at(std::span<const std::byte> frame,
                                                 std::size_t offset) {
  std::uint64_t address = 0;
  for (const std::byte byte : frame.subspan(offset, 6)) {
    address = address << 8U | std::to_integer<std::uint64_t>(byte);
  }
  return address;
}

/// Whether the address stands for more than one host, which is the lowest bit of the first byte.
[[nodiscard]] constexpr bool is_multicast(std::uint64_t address) {
  return (address >> 40U & 1U) != 0;
}

/// Whether the frame asks for a neighbour's hardware address, or gives it: ARP, or ICMPv6 133 to
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

/// The two ends of a TCP connection, in an order that does not depend on who sends. An end is an
/// address, padded with zeros to IPv6's length, and a port.
struct Connection {
  using End = std::array<std::byte, 18>;
  std::array<End, 2> ends;
  auto operator<=>(const Connection&) const = default;
};

struct TcpSegment {
  Connection connection;
  bool opens;  ///< SYN without ACK
};

/// Returns the TCP segment that the frame carries; nullopt if it is not TCP, or is a later fragment
/// of IPv4, which has no ports.
[[nodiscard]] inline std::optional<TcpSegment> tcp_segment(std::span<const std::byte> frame) {
  constexpr unsigned kTcp = 6;
  constexpr std::size_t kFlags = 13;
  const auto at = [&](std::size_t offset) { return std::to_integer<unsigned>(frame[offset]); };
  const unsigned kind = at(12) << 8U | at(13);
  const bool ipv4 = kind == 0x0800;
  const std::size_t shortest = kEthernetHeader + (ipv4 ? 20 : 40);
  if ((!ipv4 && kind != 0x86DD) || frame.size() < shortest) {
    return std::nullopt;
  }
  const std::size_t protocol = kEthernetHeader + (ipv4 ? 9 : 6);
  const bool later_fragment =
      ipv4 && ((at(kEthernetHeader + 6) & 0x1FU) != 0 || at(kEthernetHeader + 7) != 0);
  const std::size_t tcp =
      ipv4 ? kEthernetHeader + (at(kEthernetHeader) & 0xFU) * std::size_t{4} : shortest;
  if (at(protocol) != kTcp || later_fragment || frame.size() <= tcp + kFlags) {
    return std::nullopt;
  }
  const std::size_t length = ipv4 ? 4 : 16;
  const std::size_t addresses = shortest - 2 * length;
  TcpSegment segment{};
  for (std::size_t end = 0; end < 2; ++end) {
    Connection::End& filled = segment.connection.ends[end];
    std::ranges::copy(frame.subspan(addresses + end * length, length), filled.begin());
    std::ranges::copy(frame.subspan(tcp + 2 * end, 2), filled.begin() + 16);
  }
  if (segment.connection.ends[1] < segment.connection.ends[0]) {
    std::swap(segment.connection.ends[0], segment.connection.ends[1]);
  }
  segment.opens = (at(tcp + kFlags) & 0x12U) == 0x02U;
  return segment;
}

}  // namespace netlab
