#include "src/transport/ucx/tcp_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

namespace gtopk::transport {
namespace {

std::string to_string(const TcpAddress& address) {
  return fmt::format("{}{}{}:{}", address.is_ipv6() ? "[" : "", address.host,
                     address.is_ipv6() ? "]" : "", address.port);
}

/// A connection attempt; `error` is an errno, 0 when connected.
struct Attempt {
  const TcpAddress* address = nullptr;
  int socket = -1;
  int error = EINPROGRESS;
};

Attempt begin(const TcpAddress& address) {
  Attempt attempt{.address = &address};
  attempt.socket =
      socket(address.is_ipv6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (attempt.socket < 0) {
    attempt.error = errno;
    return attempt;
  }
  int done = -1;
  if (address.is_ipv6()) {
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(address.port);
    inet_pton(AF_INET6, address.host.c_str(), &to.sin6_addr);
    done = connect(attempt.socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  } else {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port);
    inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
    done = connect(attempt.socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  }
  attempt.error = done == 0 ? 0 : errno;
  return attempt;
}

void finish(std::vector<Attempt>& attempts, TimePoint end) {
  for (;;) {
    std::vector<pollfd> entries;
    for (const Attempt& attempt : attempts) {
      const bool waits = attempt.error == EINPROGRESS;
      entries.push_back({.fd = waits ? attempt.socket : -1, .events = POLLOUT, .revents = 0});
    }
    const bool waits =
        std::ranges::any_of(entries, [](const pollfd& each) { return each.fd >= 0; });
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (!waits || left.count() <= 0 ||
        (poll(entries.data(), entries.size(), static_cast<int>(left.count())) < 0 &&
         errno != EINTR)) {
      return;
    }
    for (std::size_t i = 0; i < attempts.size(); ++i) {
      socklen_t size = sizeof(int);
      if (entries[i].revents != 0) {
        getsockopt(attempts[i].socket, SOL_SOCKET, SO_ERROR, &attempts[i].error, &size);
      }
    }
  }
}

std::string describe(const Attempt& attempt) {
  const std::string address = to_string(*attempt.address);
  switch (attempt.error) {
    case 0:
      return fmt::format("{} accepts connections now", address);
    case EINPROGRESS:
    case ETIMEDOUT:
      return fmt::format(
          "{} does not answer: a firewall may drop packets to that port (UCX_TCP_PORT_RANGE says "
          "on which ports UCX accepts connections), or the address may not lead to its host from "
          "here (UCX_NET_DEVICES says which interfaces UCX uses)",
          address);
    case ECONNREFUSED:
      return fmt::format(
          "{} refuses connections: its process has ended or has closed that port, or a firewall "
          "rejects them (UCX_TCP_PORT_RANGE says on which ports UCX accepts connections)",
          address);
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case EACCES:
    case EPERM:
    case EINVAL:
      return fmt::format(
          "no route from here to {} ({}): the address may not lead to its host (UCX_NET_DEVICES "
          "says which interfaces UCX uses), or a firewall rejects connections "
          "(UCX_TCP_PORT_RANGE says on which ports UCX accepts them)",
          address, std::generic_category().message(attempt.error));
    default:
      return fmt::format("connecting to {} failed: {}", address,
                         std::generic_category().message(attempt.error));
  }
}

}  // namespace

std::optional<TcpAddress> to_tcp_address(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &ipv4.sin_addr, text.data(), text.size());
    return TcpAddress{.host = text.data(), .port = ntohs(ipv4.sin_port)};
  }
  if (address.ss_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ipv6.sin6_addr, text.data(), text.size());
    return TcpAddress{.host = text.data(), .port = ntohs(ipv6.sin6_port)};
  }
  return std::nullopt;
}

std::string to_string(const std::vector<TcpAddress>& addresses) {
  std::vector<std::string> texts;
  texts.reserve(addresses.size());
  for (const TcpAddress& address : addresses) {
    texts.push_back(to_string(address));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string diagnose_connections(const std::vector<TcpAddress>& addresses, Duration at_most) {
  const TimePoint end = std::chrono::steady_clock::now() + at_most;
  std::vector<Attempt> attempts;
  attempts.reserve(addresses.size());
  for (const TcpAddress& address : addresses) {
    attempts.push_back(begin(address));
  }
  finish(attempts, end);
  std::vector<std::string> texts;
  for (const Attempt& attempt : attempts) {
    texts.push_back(describe(attempt));
    if (attempt.socket >= 0) {
      close(attempt.socket);
    }
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::string diagnose_families(const std::vector<TcpAddress>& here,
                              const std::vector<TcpAddress>& there) {
  const auto of_family = [](std::vector<TcpAddress> addresses, bool ipv6) {
    std::erase_if(addresses, [ipv6](const TcpAddress& each) {
      return each.is_loopback() || each.is_ipv6() != ipv6;
    });
    return addresses;
  };
  const std::vector<TcpAddress> ipv4_here = of_family(here, false);
  const std::vector<TcpAddress> ipv6_here = of_family(here, true);
  const std::vector<TcpAddress> ipv4_there = of_family(there, false);
  const std::vector<TcpAddress> ipv6_there = of_family(there, true);
  const bool common =
      (!ipv4_here.empty() && !ipv4_there.empty()) || (!ipv6_here.empty() && !ipv6_there.empty());
  const bool ipv6 = ipv4_here.empty();
  if (common || (ipv4_here.empty() && ipv6_here.empty()) ||
      (ipv4_there.empty() && ipv6_there.empty())) {
    return {};
  }
  return fmt::format(
      "this process accepts connections on {} addresses ({}), its peer on {} addresses ({}). Set "
      "UCX_TCP_AF_PRIO=inet6,inet on all ranks if all hosts have IPv6 addresses, else inet,inet6",
      ipv6 ? "IPv6" : "IPv4", to_string(ipv6 ? ipv6_here : ipv4_here), ipv6 ? "IPv4" : "IPv6",
      to_string(ipv6 ? ipv4_there : ipv6_there));
}

}  // namespace gtopk::transport
