#include "src/transport/ucx/own_sockets.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "src/transport/base/log.hpp"

namespace gtopk::transport {
namespace {

constexpr Duration kShortestPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(1);
/// UCX's set contains one set for each network interface, which contains the sockets.
constexpr int kNesting = 2;

// The functions below run in a forked child, so they neither allocate nor lock.

/// Returns the number after `key` in a line of /proc.
template <typename Number>
std::optional<Number> field(std::string_view line, std::string_view key, int base) {
  std::size_t at = line.find(key);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  at = line.find_first_not_of(' ', at + key.size());
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  Number number{};
  const char* const end = line.data() + line.size();
  const auto result = std::from_chars(line.data() + at, end, number, base);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

int open_description(int descriptor) {
  constexpr std::string_view kDirectory = "/proc/self/fdinfo/";
  std::array<char, 48> path{};
  std::memcpy(path.data(), kDirectory.data(), kDirectory.size());
  std::to_chars(path.data() + kDirectory.size(), path.data() + path.size() - 1, descriptor);
  return open(path.data(), O_RDONLY | O_CLOEXEC);
}

/// Does the same as fstat(), for which ThreadSanitizer treats a descriptor as memory written by the
/// threads that open and close it. ThreadSanitizer knows neither the epoll set nor the directory
/// through which this thread found the descriptor.
bool read_facts(int descriptor, struct stat& facts) {
  return fstatat(descriptor, "", &facts, AT_EMPTY_PATH) == 0;
}

/// Whether the descriptor still refers to this inode. UCX may have closed it, and its number may
/// have been reused.
bool is_file(int descriptor, ino_t inode, struct stat& facts) {
  return read_facts(descriptor, facts) && facts.st_ino == inode;
}

/// Calls `visit` with each of this process's descriptors in the epoll set `set`, and in the sets
/// inside it. A forked child shares its parent's set, which may list what the parent has opened
/// meanwhile.
template <typename Visit>
void visit_members(int set, int nesting, const Visit& visit) {
  const int file = open_description(set);
  if (file < 0) {
    return;
  }
  std::array<char, 1024> buffer{};
  std::size_t held = 0;
  ssize_t count = 0;
  while ((count = read(file, buffer.data() + held, buffer.size() - held)) > 0) {
    held += static_cast<std::size_t>(count);
    std::string_view rest(buffer.data(), held);
    for (std::size_t end = 0; (end = rest.find('\n')) != std::string_view::npos;) {
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end + 1);
      const auto member = field<int>(line, "tfd:", 10);
      const auto inode = field<ino_t>(line, "ino:", 16);
      struct stat entry {};
      if (!member || !inode || !is_file(*member, *inode, entry)) {
        continue;
      }
      visit(*member, S_ISSOCK(entry.st_mode));
      if (!S_ISSOCK(entry.st_mode) && nesting > 1) {
        visit_members(*member, nesting - 1, visit);
      }
    }
    held = rest.size();
    std::memmove(buffer.data(), rest.data(), held);
  }
  close(file);
}

// From here on, the functions run in the process itself.

/// Returns the shortest round trip on a connection to one of these hosts.
std::optional<Duration> round_trip_of(int socket, const std::vector<TcpAddress>& hosts) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return std::nullopt;
  }
  const std::optional<TcpAddress> peer = to_tcp_address(address);
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (!peer || std::ranges::count(hosts, peer->host, &TcpAddress::host) == 0 ||
      getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_rtt == 0) {
    return std::nullopt;
  }
  return std::chrono::microseconds(std::min(info.tcpi_rtt, info.tcpi_min_rtt));
}

void close_on_exec(int descriptor) { fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

template <typename Visit>
void visit_listeners(const Visit& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc/self/fd"), &closedir);
  if (directory == nullptr) {
    return;
  }
  while (const dirent* const entry = readdir(directory.get())) {
    const int descriptor = std::atoi(entry->d_name);  // 0 if it is not a number
    int listens = 0;
    socklen_t size = sizeof(listens);
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      continue;
    }
    struct stat facts {};
    const std::optional<TcpAddress> tcp = to_tcp_address(address);
    if (tcp && read_facts(descriptor, facts)) {
      visit(descriptor, facts.st_ino, *tcp);
    }
  }
}

/// The sets of all workers of this process, for the fork() handler, which takes no argument. There
/// is no lock: a fork must not wait for a thread that starts a worker, which may wait for the fork.
constexpr std::size_t kWorkers = 256;
std::array<std::atomic<const OwnSockets*>, kWorkers> of_this_process{};

void close_in_child() {
  for (auto& place : of_this_process) {
    if (const OwnSockets* const sockets = place.exchange(nullptr)) {
      sockets->close_all();
    }
  }
}

}  // namespace

std::vector<ino_t> listening_sockets() {
  std::vector<ino_t> inodes;
  visit_listeners([&](int, ino_t inode, const TcpAddress&) { inodes.push_back(inode); });
  return inodes;
}

OwnSockets::OwnSockets(int event_descriptor, const std::vector<ino_t>& before,
                       std::string_view address, const std::optional<Keepalive>& keepalive)
    : event_descriptor_(event_descriptor) {
  close_on_exec(event_descriptor);
  visit_listeners([&](int descriptor, ino_t inode, const TcpAddress& tcp) {
    // Another thread may have started to listen meanwhile for another purpose.
    const in_port_t port = htons(tcp.port);
    const std::string_view bytes(reinterpret_cast<const char*>(&port), sizeof(port));
    if (std::find(before.begin(), before.end(), inode) == before.end() &&
        address.find(bytes) != std::string_view::npos) {
      close_on_exec(descriptor);
      if (keepalive) {
        keep_alive(descriptor, *keepalive);
      }
      listeners_.push_back({.descriptor = descriptor, .inode = inode, .address = tcp});
    }
  });
  static const int registered = pthread_atfork(nullptr, nullptr, &close_in_child);
  const bool kept = std::ranges::any_of(of_this_process, [this](auto& place) {
    const OwnSockets* nobody = nullptr;
    return place.compare_exchange_strong(nobody, this);
  });
  if (registered != 0 || !kept) {
    log().warn("forked children of this process will keep its connections open: {}",
               kept ? "no fork handler" : "too many workers");
  }
}

OwnSockets::~OwnSockets() {
  for (auto& place : of_this_process) {
    const OwnSockets* self = this;
    place.compare_exchange_strong(self, nullptr);
  }
}

std::vector<TcpAddress> OwnSockets::addresses() const {
  std::vector<TcpAddress> addresses;
  addresses.reserve(listeners_.size());
  for (const Listener& listener : listeners_) {
    addresses.push_back(listener.address);
  }
  std::ranges::sort(addresses);
  return addresses;
}

std::optional<Duration> OwnSockets::round_trip(const std::vector<TcpAddress>& hosts) const {
  std::optional<Duration> shortest;
  visit_members(event_descriptor_, kNesting, [&](int member, bool is_socket) {
    const auto one = is_socket ? round_trip_of(member, hosts) : std::nullopt;
    if (one && (!shortest || *one < *shortest)) {
      shortest = one;
    }
  });
  return shortest;
}

void OwnSockets::mark(TimePoint now) {
  if (now < next_look_ && pause_ != Duration::zero()) {
    return;
  }
  visit_members(event_descriptor_, kNesting, [](int member, bool) { close_on_exec(member); });
  lost_listener_ = std::ranges::any_of(listeners_, [](const Listener& listener) {
    struct stat entry {};
    return !is_file(listener.descriptor, listener.inode, entry);
  });
  pause_ = std::clamp(2 * pause_, kShortestPause, kLongestPause);
  next_look_ = now + pause_;
}

void OwnSockets::close_all() const {
  visit_members(event_descriptor_, kNesting, [](int member, bool is_socket) {
    if (is_socket) {
      close(member);
    }
  });
  for (const auto& [descriptor, inode, address] : listeners_) {
    struct stat entry {};
    if (is_file(descriptor, inode, entry)) {
      close(descriptor);
    }
  }
}

}  // namespace gtopk::transport
