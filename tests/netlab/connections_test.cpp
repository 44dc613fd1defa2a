// The lab's switch as a NAT: which segments pass, and when a connection is forgotten.
#include "connections.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace netlab {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kSyn = 0x02;
constexpr unsigned kAck = 0x10;

struct Ends {
  std::uint8_t from = 1;  // the last byte of the address
  std::uint8_t to = 2;
  std::uint8_t from_port = 80;
  std::uint8_t to_port = 90;
};

std::vector<std::byte> segment(const Ends& ends, unsigned flags, bool ipv6 = false) {
  const std::size_t tcp = kEthernetHeader + (ipv6 ? 40 : 20);
  std::vector<std::byte> bytes(tcp + 20);
  const auto set = [&](std::size_t offset, unsigned value) {
    bytes.at(offset) = static_cast<std::byte>(value);
  };
  set(12, ipv6 ? 0x86 : 0x08);
  set(13, ipv6 ? 0xDD : 0x00);
  set(kEthernetHeader, ipv6 ? 0x60 : 0x45);
  set(kEthernetHeader + (ipv6 ? 6 : 9), 6);  // TCP
  set(tcp - (ipv6 ? 17 : 5), ends.from);
  set(tcp - 1, ends.to);
  set(tcp + 1, ends.from_port);
  set(tcp + 3, ends.to_port);
  set(tcp + 13, flags);
  return bytes;
}

TEST(TcpSegment, BothDirections_ShareConnectionAndOtherEndsDoNot) {
  for (const bool ipv6 : {false, true}) {
    const auto there = tcp_segment(segment({}, kSyn, ipv6));
    const auto back = tcp_segment(segment({2, 1, 90, 80}, kSyn | kAck, ipv6));
    ASSERT_TRUE(there && back);
    EXPECT_EQ(there->connection, back->connection);
    EXPECT_TRUE(there->opens);
    EXPECT_FALSE(back->opens);
    for (const Ends& other : {Ends{3, 2, 80, 90}, Ends{1, 3, 80, 90}, Ends{1, 2, 81, 90},
                              Ends{1, 2, 80, 91}, Ends{2, 1, 80, 90}}) {
      EXPECT_NE(tcp_segment(segment(other, 0, ipv6))->connection, there->connection);
    }
  }
}

TEST(TcpSegment, OptionsOfIpv4AreSkipped) {
  std::vector<std::byte> bytes = segment({}, kSyn);
  const auto plain = tcp_segment(bytes);
  bytes.insert(bytes.begin() + kEthernetHeader + 20, 4, std::byte{1});
  bytes[kEthernetHeader] = std::byte{0x46};
  ASSERT_TRUE(tcp_segment(bytes));
  EXPECT_EQ(tcp_segment(bytes)->connection, plain->connection);
}

TEST(TcpSegment, NonTcpLaterFragmentOrShortFrame_IsNone) {
  for (const bool ipv6 : {false, true}) {
    const std::vector<std::byte> whole = segment({}, kSyn, ipv6);
    for (std::size_t size = kEthernetHeader; size < whole.size() - 6; ++size) {
      EXPECT_FALSE(tcp_segment(std::span(whole).first(size))) << size;
    }
    std::vector<std::byte> udp = whole;
    udp[kEthernetHeader + (ipv6 ? 6 : 9)] = std::byte{17};
    EXPECT_FALSE(tcp_segment(udp));
  }
  std::vector<std::byte> fragment = segment({}, kSyn);
  fragment[kEthernetHeader + 6] = std::byte{0x20};  // the first of several: it names the ports
  EXPECT_TRUE(tcp_segment(fragment));
  fragment[kEthernetHeader + 7] = std::byte{185};
  EXPECT_FALSE(tcp_segment(fragment));
  std::vector<std::byte> arp = segment({}, kSyn);
  arp[13] = std::byte{0x06};
  EXPECT_FALSE(tcp_segment(arp));
}

TEST(Connections, AreForgottenAfterASilenceAndNotBefore) {
  Connections nat(5s);
  EXPECT_FALSE(nat.pass(0s, segment({}, kAck)));  // nobody has opened it
  EXPECT_TRUE(nat.pass(0s, segment({}, kSyn)));
  EXPECT_TRUE(nat.pass(5s, segment({2, 1, 90, 80}, kSyn | kAck)));
  EXPECT_TRUE(nat.pass(10s, segment({}, kAck)));
  EXPECT_FALSE(nat.pass(15s + 1ns, segment({}, kAck)));
  EXPECT_FALSE(nat.pass(16s, segment({2, 1, 90, 80}, kAck)));
  EXPECT_TRUE(nat.pass(17s, segment({}, kSyn)));
  EXPECT_TRUE(nat.pass(18s, segment({}, kAck)));
}

TEST(Connections, OneIsForgottenWhileAnotherIsNot) {
  Connections nat(5s);
  const Ends other{.from_port = 81};
  EXPECT_TRUE(nat.pass(0s, segment({}, kSyn)));
  EXPECT_TRUE(nat.pass(0s, segment(other, kSyn)));
  EXPECT_TRUE(nat.pass(4s, segment({}, kAck)));
  EXPECT_TRUE(nat.pass(8s, segment({}, kAck)));
  EXPECT_FALSE(nat.pass(8s, segment(other, kAck)));
}

TEST(Connections, AreNeverForgottenUnlessAskedAndOthersThanTcpPass) {
  Connections never(0s);
  EXPECT_TRUE(never.pass(0s, segment({}, kAck)));
  std::vector<std::byte> arp = segment({}, kAck);
  arp[13] = std::byte{0x06};
  EXPECT_TRUE(Connections(5s).pass(0s, arp));
}

}  // namespace
}  // namespace netlab
