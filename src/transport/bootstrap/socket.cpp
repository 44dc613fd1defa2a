#include "src/transport/bootstrap/socket.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "gtopk/error.hpp"
#include "src/transport/base/keepalive.hpp"
#include "src/transport/base/shortage.hpp"

namespace gtopk::bootstrap {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// How long an address may take to answer in the first round, while others are untried.
constexpr std::chrono::seconds kFirstPatience{1};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

std::string error_text(int code) { return std::generic_category().message(code); }

Addresses resolve(const Endpoint& endpoint, int flags, std::string& reason) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(endpoint.host.empty() ? nullptr : endpoint.host.c_str(),
                               std::to_string(endpoint.port).c_str(), &hints, &list);
  if (code != 0) {
    reason = fmt::format("the name cannot be resolved: {}", gai_strerror(code));
    return nullptr;
  }
  return Addresses(list);
}

/// Returns milliseconds for poll(), rounded up so that a short remainder does not become a busy
/// loop.
int poll_time(TimePoint deadline) {
  const auto rest = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(rest.count(), 0, 60'000));
}

/// Waits for `events`; returns true if they occur before the deadline.
bool await(int socket, short events, TimePoint deadline) {
  for (;;) {
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, poll_time(deadline));
    if (ready > 0) {
      return true;
    }
    if (ready == 0 && steady_clock::now() >= deadline) {
      return false;
    }
    if (ready < 0 && errno != EINTR) {
      return false;
    }
  }
}

Descriptor open_socket(const addrinfo& address) {
  return Descriptor(
      socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// Makes one attempt at one address; returns 0 or an errno.
int try_connect(const addrinfo& address, TimePoint deadline, Descriptor& made) {
  Descriptor socket = open_socket(address);
  if (!socket) {
    return errno;
  }
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      return errno;
    }
    if (!await(socket.get(), POLLOUT, deadline)) {
      return ETIMEDOUT;
    }
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      return error != 0 ? error : errno;
    }
  }
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  transport::keep_alive(socket.get());
  made = std::move(socket);
  return 0;
}

/// The outcome of one round of attempts.
struct Round {
  std::string reasons;
  bool final = false;
};

/// Makes one attempt at each address of one endpoint.
Descriptor try_all_addresses(const Endpoint& endpoint, Duration patience, TimePoint deadline,
                             const Greeting& greet, Round& round) {
  std::string reason;
  const Addresses addresses = resolve(endpoint, 0, reason);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const TimePoint until = std::min<TimePoint>(deadline, steady_clock::now() + patience);
    Descriptor socket;
    const int error = try_connect(*address, until, socket);
    reason = error != 0 ? error_text(error) : "";
    if (error == EMFILE || error == ENFILE) {
      // Neither another address nor a retry is likely to help, and the cause is not rank 0.
      reason = transport::descriptor_shortage(1);
      round.final = true;
    }
    if (error == 0) {
      const std::optional<Refusal> refusal = greet ? greet(socket, until) : std::nullopt;
      if (!refusal) {
        return socket;
      }
      reason = refusal->reason;
      round.final = round.final || refusal->final;
    }
  }
  round.reasons +=
      fmt::format("{}{}: {}", round.reasons.empty() ? "" : "; ", to_string(endpoint), reason);
  return {};
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) {
    ::close(number_);
  }
}

std::string to_string(const Endpoint& endpoint) {
  if (endpoint.host.find(':') == std::string::npos) {
    return fmt::format("{}:{}", endpoint.host, endpoint.port);
  }
  return fmt::format("[{}]:{}", endpoint.host, endpoint.port);  // IPv6
}

std::string to_string(std::span<const Endpoint> ways) {
  std::vector<std::string> texts;
  for (const Endpoint& way : ways) {
    texts.push_back(to_string(way));
  }
  return fmt::format("{}", fmt::join(texts, " or "));
}

std::string describe(Duration duration) {
  return fmt::format("{:g} s", std::chrono::duration<double>(duration).count());
}

Descriptor listen_on(const Endpoint& endpoint) {
  std::string reason;
  const Addresses addresses = resolve(endpoint, AI_PASSIVE, reason);
  // An IPv6 wildcard accepts IPv4 too, so one socket serves both. Debian's list has it last.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* address = addresses.get(); address != nullptr;
         address = address->ai_next) {
      if (address->ai_family != family) {
        continue;
      }
      Descriptor socket = open_socket(*address);
      const int on = 1;
      const int off = 0;
      if (socket) {
        setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      }
      if (socket && family == AF_INET6) {
        setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      }
      if (socket && bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
          listen(socket.get(), SOMAXCONN) == 0) {
        return socket;
      }
      reason = error_text(errno);
    }
  }
  throw Error(ErrorKind::kBootstrap,
              fmt::format("the rendezvous cannot listen on {}: {}", to_string(endpoint), reason));
}

std::uint16_t local_port(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(ErrorKind::kBootstrap, "getsockname: " + error_text(errno));
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string peer_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> text{};
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(),
                  nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return text.data();
}

Descriptor connect_to(std::span<const Endpoint> ways, Duration at_most, const Greeting& greet) {
  const TimePoint deadline = steady_clock::now() + at_most;
  Round round;
  milliseconds pause{10};
  Duration patience = kFirstPatience;
  do {
    round = Round();
    for (const Endpoint& way : ways) {
      if (Descriptor socket = try_all_addresses(way, patience, deadline, greet, round)) {
        return socket;
      }
    }
    if (round.final) {
      throw Error(ErrorKind::kBootstrap, "cannot connect to the rendezvous: " + round.reasons);
    }
    const Duration rest = deadline - steady_clock::now();
    if (rest > Duration::zero()) {
      poll(nullptr, 0, poll_time(steady_clock::now() + std::min<Duration>(rest, pause)));
    }
    pause = std::min(pause * 2, milliseconds(250));
    patience *= 2;
  } while (steady_clock::now() < deadline);
  throw Error(
      ErrorKind::kBootstrap,
      fmt::format(
          "no connection to the rendezvous within {}: {}. Is rank 0 running, does the address name "
          "its host, and does the firewall let the port through?",
          describe(at_most), round.reasons));
}

Transfer send_all(const Descriptor& socket, std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!await(socket.get(), POLLOUT, deadline)) {
        return Transfer::kTimedOut;
      }
    } else if (errno != EINTR) {
      return Transfer::kClosed;
    }
  }
  return Transfer::kDone;
}

Transfer receive_all(const Descriptor& socket, char* into, std::size_t bytes, TimePoint deadline) {
  while (bytes > 0) {
    const ssize_t got = recv(socket.get(), into, bytes, 0);
    if (got > 0) {
      into += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!await(socket.get(), POLLIN, deadline)) {
        return Transfer::kTimedOut;
      }
    } else if (got == 0 || errno != EINTR) {
      return Transfer::kClosed;
    }
  }
  return Transfer::kDone;
}

}  // namespace gtopk::bootstrap
