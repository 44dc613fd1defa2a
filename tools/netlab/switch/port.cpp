#include "port.hpp"

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <ctime>
#include <system_error>

#include "ethernet.hpp"

namespace netlab {

namespace {

constexpr std::size_t kRingBytes = std::size_t{8} << 20;
// This is more than the queue of a shaped port holds, including the kernel's overhead per frame, so
// that frames are dropped by that queue and not by the socket.
constexpr int kSendBytes = 64 << 20;
constexpr std::size_t kBatch = 32;
// These are the kernel's header of a slot, the sender's address, and padding.
constexpr std::size_t kBeforeFrame = sizeof(tpacket2_hdr) + sizeof(sockaddr_ll) + 64;

void require(bool succeeded, const std::string& what) {
  if (!succeeded) {
    throw std::system_error(errno, std::system_category(), what);
  }
}

ifreq request_for(const std::string& interface) {
  ifreq request{};
  interface.copy(static_cast<char*>(request.ifr_name), IFNAMSIZ - 1);
  return request;
}

template <typename Value>
void set(int socket, int level, int option, const Value& value, const std::string& what) {
  require(setsockopt(socket, level, option, &value, sizeof value) == 0, what);
}

}  // namespace

void disable_offloads(const std::string& interface) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  require(socket >= 0, "socket");
  for (const int command : {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM}) {
    ethtool_value off{static_cast<std::uint32_t>(command), 0};
    ifreq request = request_for(interface);
    request.ifr_data = reinterpret_cast<char*>(&off);
    if (ioctl(socket, SIOCETHTOOL, &request) != 0) {
      const int error = errno;
      close(socket);
      throw std::system_error(error, std::system_category(), interface + ": ethtool");
    }
  }
  close(socket);
}

Port::Port(const std::string& interface)
    : socket_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  require(socket_ >= 0, interface + ": raw socket");
  ifreq request = request_for(interface);
  require(ioctl(socket_, SIOCGIFMTU, &request) == 0, interface + ": MTU");
  const auto mtu = static_cast<std::size_t>(request.ifr_mtu);
  slot_bytes_ = std::bit_ceil(kBeforeFrame + kEthernetHeader + mtu);
  slots_ = kRingBytes / slot_bytes_;
  set(socket_, SOL_PACKET, PACKET_VERSION, int{TPACKET_V2}, interface + ": ring's version");
  set(socket_, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, interface + ": own frames");
  set(socket_, SOL_SOCKET, SO_SNDBUFFORCE, kSendBytes, interface + ": send buffer");
  tpacket_req ring{};
  ring.tp_block_size = static_cast<unsigned>(std::max<std::size_t>(slot_bytes_, 1 << 16));
  ring.tp_block_nr = static_cast<unsigned>(kRingBytes / ring.tp_block_size);
  ring.tp_frame_size = static_cast<unsigned>(slot_bytes_);
  ring.tp_frame_nr = static_cast<unsigned>(slots_);
  set(socket_, SOL_PACKET, PACKET_RX_RING, ring, interface + ": ring");
  void* const memory = mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, socket_, 0);
  require(memory != MAP_FAILED, interface + ": ring's memory");
  ring_ = static_cast<std::byte*>(memory);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  require(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          interface + ": bind");
}

Port::~Port() {
  munmap(ring_, kRingBytes);
  close(socket_);
}

std::byte* Port::slot() const { return ring_ + next_ * slot_bytes_; }

std::optional<Port::Received> Port::receive() {
  auto* const header = reinterpret_cast<tpacket2_hdr*>(slot());
  if ((std::atomic_ref(header->tp_status).load(std::memory_order_acquire) & TP_STATUS_USER) == 0) {
    return std::nullopt;
  }
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const Time age = std::chrono::seconds(now.tv_sec - static_cast<std::time_t>(header->tp_sec)) +
                   Time(now.tv_nsec - static_cast<long>(header->tp_nsec));
  // Without a bound, setting the clock would lengthen the delay.
  const Time bounded = std::clamp(age, Time{0}, Time{std::chrono::seconds(1)});
  return Received{std::span(slot() + header->tp_mac, header->tp_snaplen), bounded,
                  header->tp_snaplen == header->tp_len};
}

void Port::release() {
  auto* const header = reinterpret_cast<tpacket2_hdr*>(slot());
  std::atomic_ref(header->tp_status).store(TP_STATUS_KERNEL, std::memory_order_release);
  next_ = (next_ + 1) % slots_;
}

std::size_t Port::send(std::span<const Frame> frames) const {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> parts{};
  std::size_t taken = 0;
  while (!frames.empty()) {
    const std::size_t count = std::min(frames.size(), kBatch);
    for (std::size_t i = 0; i < count; ++i) {
      // sendmmsg does not write to it.
      parts.at(i) = {const_cast<std::byte*>(frames[i].bytes.data()), frames[i].bytes.size()};
      messages.at(i).msg_hdr.msg_iov = &parts.at(i);
      messages.at(i).msg_hdr.msg_iovlen = 1;
    }
    const int sent = sendmmsg(socket_, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
    // An error belongs to the first frame, which is gone: the queue was full, or the port is down.
    // An error after some frames were sent is reported by the next call, for the frame to which it
    // belongs.
    taken += sent > 0 ? static_cast<std::size_t>(sent) : 0;
    frames = frames.subspan(sent > 0 ? static_cast<std::size_t>(sent) : 1);
  }
  return taken;
}

std::uint64_t Port::missed() const {
  tpacket_stats statistics{};
  socklen_t size = sizeof statistics;
  require(getsockopt(socket_, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) == 0,
          "ring's statistics");
  return statistics.tp_drops;
}

}  // namespace netlab
