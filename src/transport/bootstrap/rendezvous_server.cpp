#include "transport/bootstrap/rendezvous_server.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "gtopk/error.hpp"
#include "transport/base/log.hpp"

namespace gtopk::bootstrap {
namespace {

constexpr std::size_t kMaxConnections = 1024;
constexpr std::size_t kMaxKept = std::size_t{256} << 20U;
constexpr std::size_t kMaxRequest = kRequestHeader + kMaxKey + kMaxValue;

}  // namespace

RendezvousListener::RendezvousListener(const Endpoint& endpoint)
    : socket_(listen_on(endpoint)), port_(local_port(socket_)) {}

RendezvousServer::RendezvousServer(RendezvousListener listener)
    : listener_(std::move(listener)), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) {
    throw Error(ErrorKind::kBootstrap,
                "the rendezvous has no eventfd: " + std::generic_category().message(errno));
  }
  thread_ = std::thread([this] { serve(); });
}

RendezvousServer::~RendezvousServer() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

bool RendezvousServer::drain(Duration at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, at_most, [this] { return clients_ == 0; });
}

void RendezvousServer::serve() {
  std::vector<pollfd> entries;
  for (;;) {
    entries.clear();
    entries.push_back({.fd = stop_.get(), .events = POLLIN, .revents = 0});
    entries.push_back({.fd = listener_.socket_.get(), .events = POLLIN, .revents = 0});
    for (const Connection& connection : connections_) {
      // Who waits for a key is not read from: its input stays bounded, and its end is seen all the
      // same.
      short events = connection.waiting_for.empty() ? POLLIN : POLLRDHUP;
      if (!connection.output.empty()) {
        events = POLLOUT | POLLRDHUP;
      }
      entries.push_back({.fd = connection.socket.get(), .events = events, .revents = 0});
    }
    if (poll(entries.data(), entries.size(), -1) < 0) {
      if (errno == EINTR) {
        continue;
      }
      transport::log().error("rendezvous: poll: {}", std::generic_category().message(errno));
      return;
    }
    if (entries[0].revents != 0) {
      return;
    }
    auto entry = entries.begin() + 2;
    for (Connection& connection : connections_) {
      const short seen = entry++->revents;
      if ((seen & POLLOUT) != 0) {
        write_to(connection);
      }
      if ((seen & POLLIN) != 0) {
        read_from(connection);
      } else if ((seen & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0) {
        connection.open = false;
      }
    }
    drop_closed();
    if (entries[1].revents != 0) {
      accept_all();
    }
  }
}

void RendezvousServer::accept_all() {
  for (;;) {
    Descriptor socket(
        accept4(listener_.socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      return;
    }
    if (connections_.size() >= kMaxConnections) {
      // Room is made at the cost of the oldest that never said anything sensible.
      const auto stranger = std::find_if(connections_.begin(), connections_.end(),
                                         [](const Connection& c) { return !c.is_client; });
      if (stranger == connections_.end()) {
        continue;
      }
      connections_.erase(stranger);
    }
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    connections_.emplace_back().socket = std::move(socket);
  }
}

void RendezvousServer::read_from(Connection& connection) {
  char buffer[16384];
  while (connection.open && connection.input.size() <= kMaxRequest) {
    const ssize_t got = recv(connection.socket.get(), buffer, sizeof(buffer), 0);
    if (got > 0) {
      connection.input.append(buffer, static_cast<std::size_t>(got));
      answer_requests(connection);
      if (!connection.waiting_for.empty()) {
        return;
      }
    } else if (got == 0) {
      connection.open = false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      connection.open = false;
    }
  }
}

void RendezvousServer::write_to(Connection& connection) {
  while (connection.open && !connection.output.empty()) {
    const ssize_t sent = send(connection.socket.get(), connection.output.data(),
                              connection.output.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      connection.output.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      connection.open = false;
    }
  }
}

void RendezvousServer::answer_requests(Connection& connection) {
  std::size_t used = 0;
  while (connection.open && connection.waiting_for.empty()) {
    RequestView request;
    const Parse parse = parse_request(std::string_view(connection.input).substr(used), request);
    if (parse == Parse::kIncomplete) {
      break;
    }
    if (parse == Parse::kMalformed || !answer(connection, request)) {
      transport::log().debug("rendezvous: dropped a connection that does not speak its protocol");
      connection.open = false;
      break;
    }
    used += request.size;
    if (!connection.is_client) {
      connection.is_client = true;
      const std::scoped_lock lock(mutex_);
      ++clients_;
    }
  }
  connection.input.erase(0, used);
  write_to(connection);
}

bool RendezvousServer::answer(Connection& connection, const RequestView& request) {
  switch (request.command) {
    case Command::kSet: {
      const bool kept = store(request.key, request.value);
      connection.output += encode_response(kept ? Result::kOk : Result::kRefused, {});
      return true;
    }
    case Command::kGet: {
      if (!request.value.empty()) {
        return false;
      }
      const auto found = values_.find(std::string(request.key));
      if (found == values_.end()) {
        connection.waiting_for = request.key;
      } else {
        connection.output += encode_response(Result::kOk, found->second);
      }
      return true;
    }
    case Command::kAdd: {
      const auto delta = decode_integer(request.value);
      if (!delta) {
        return false;
      }
      const auto [counter, fresh] = counters_.try_emplace(std::string(request.key), 0);
      bytes_kept_ += fresh ? request.key.size() + sizeof(*delta) : 0;
      // Unsigned arithmetic: a stranger's delta must not be able to overflow.
      counter->second = static_cast<std::int64_t>(static_cast<std::uint64_t>(counter->second) +
                                                  static_cast<std::uint64_t>(*delta));
      connection.output += encode_response(Result::kOk, encode_integer(counter->second));
      return bytes_kept_ <= kMaxKept;
    }
  }
  return false;
}

bool RendezvousServer::store(std::string_view key, std::string_view value) {
  const auto [entry, fresh] = values_.try_emplace(std::string(key));
  const std::size_t before = fresh ? 0 : key.size() + entry->second.size();
  const std::size_t kept = bytes_kept_ - before + key.size() + value.size();
  if (kept > kMaxKept) {
    if (fresh) {
      values_.erase(entry);
    }
    return false;
  }
  bytes_kept_ = kept;
  entry->second = value;
  for (Connection& waiter : connections_) {
    if (waiter.waiting_for == key) {
      waiter.waiting_for.clear();
      waiter.output += encode_response(Result::kOk, value);
      write_to(waiter);
    }
  }
  return true;
}

void RendezvousServer::drop_closed() {
  std::size_t gone = 0;
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    if (connection->open) {
      ++connection;
      continue;
    }
    gone += connection->is_client ? 1 : 0;
    connection = connections_.erase(connection);
  }
  if (gone > 0) {
    {
      const std::scoped_lock lock(mutex_);
      clients_ -= gone;
    }
    changed_.notify_all();
  }
}

}  // namespace gtopk::bootstrap
