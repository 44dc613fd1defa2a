#include "src/torch_backend/store_connection.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace gtopk::torch_backend {
namespace {

std::optional<ino_t> inode_of(int descriptor) {
  struct stat entry {};
  return fstat(descriptor, &entry) == 0 && S_ISSOCK(entry.st_mode) ? std::optional(entry.st_ino)
                                                                   : std::nullopt;
}

/// Returns the port at the other end, or 0.
std::uint16_t peer_port(int descriptor) {
  sockaddr_in6 peer{};  // an IPv4 address has its port at the same offset
  socklen_t size = sizeof(peer);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the socket interface's own way
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
      (peer.sin6_family != AF_INET && peer.sin6_family != AF_INET6)) {
    return 0;
  }
  return ntohs(peer.sin6_port);
}

/// Enables keepalives, as between ranks, so that a NAT does not forget the connection while the
/// store is idle.
void keep_alive(int descriptor) {
  const auto set = [descriptor](int level, int option, int value) {
    setsockopt(descriptor, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

}  // namespace

StoreConnection::StoreConnection(std::uint16_t port) : port_(port), sockets_(connections()) {}

void StoreConnection::made() {
  std::vector<Socket> now = connections();
  for (const Socket& each : now) {
    keep_alive(each.descriptor);
  }
  std::erase_if(now, [&](const Socket& each) { return std::ranges::count(sockets_, each) != 0; });
  sockets_ = std::move(now);
}

std::vector<StoreConnection::Socket> StoreConnection::connections() const {
  std::vector<Socket> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (const auto inode = inode_of(descriptor); inode && peer_port(descriptor) == port_) {
      found.push_back({descriptor, *inode});
    }
  }
  return found;
}

bool StoreConnection::closed() const {
  return std::ranges::any_of(sockets_, [](const Socket& each) {
    if (inode_of(each.descriptor) != each.inode) {
      return false;  // the descriptor has been reused
    }
    char next = 0;
    const ssize_t got = ::recv(each.descriptor, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  });
}

}  // namespace gtopk::torch_backend
