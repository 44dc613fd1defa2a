#include "src/transport/bootstrap/rendezvous_server.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/shortage.hpp"

namespace gtopk::bootstrap {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxRequest = kRequestHeader + kMaxKey + kMaxValue;
/// The time until a retry, after running out of descriptors for the next client.
constexpr milliseconds kAcceptPause{100};
/// A connection silent for this long may be dropped if descriptors run out.
constexpr std::chrono::seconds kSilence{1};

/// Logs a refusal at counts of 1, 2, 4 ..., so that strangers cannot fill the log.
void log_refusal(std::string_view address, std::size_t so_far) {
  if (!std::has_single_bit(so_far)) {
    return;
  }
  transport::log().warn("rendezvous: refused {}, which does not know the job's secret ({} so far)",
                        address, so_far);
}

}  // namespace

RendezvousListener::RendezvousListener(const Endpoint& endpoint)
    : socket_(listen_on(endpoint)), port_(local_port(socket_)) {}

RendezvousServer::Value::Value(std::string_view content, std::atomic<std::size_t>& kept)
    : bytes(content), kept(kept) {
  kept += bytes.size();
}

RendezvousServer::Value::~Value() { kept -= bytes.size(); }

RendezvousServer::RendezvousServer(RendezvousListener listener, std::string secret)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) {
    throw Error(ErrorKind::kBootstrap, "the rendezvous cannot create an eventfd: " +
                                           std::generic_category().message(errno));
  }
  thread_ = transport::start_thread("gtopk-store", [this] { serve(); });
}

RendezvousServer::~RendezvousServer() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
  connections_.clear();  // before bytes_kept_, from which connections subtract their values
}

bool RendezvousServer::drain(Duration at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, at_most, [this] { return clients_ == 0; });
}

RendezvousServer::Load RendezvousServer::load() const {
  return {.rounds = rounds_,
          .bytes = bytes_kept_ + bytes_unanswered_,
          .keys = keys_,
          .connections = connected_,
          .refused = refused_};
}

std::vector<pollfd> RendezvousServer::entries() const {
  std::vector<pollfd> entries;
  entries.reserve(connections_.size() + 2);
  entries.push_back({.fd = stop_.get(), .events = POLLIN, .revents = 0});
  const bool accepts = accepts_again_ <= steady_clock::now();
  entries.push_back({.fd = accepts ? listener_.socket_.get() : -1, .events = POLLIN, .revents = 0});
  for (const Connection& connection : connections_) {
    // A client that waits for a key or does not read an answer is not read from, so that the memory
    // kept for it stays bounded; its end is still noticed.
    short events = connection.waiting_for.empty() ? POLLIN : POLLRDHUP;
    if (connection.has_unsent()) {
      events = POLLOUT | POLLRDHUP;
    }
    entries.push_back({.fd = connection.socket.get(), .events = events, .revents = 0});
  }
  return entries;
}

int RendezvousServer::poll_time() const {
  const TimePoint now = steady_clock::now();
  std::optional<TimePoint> first;
  if (accepts_again_ > now) {
    first = accepts_again_;
  }
  for (const Connection& connection : connections_) {
    if (!connection.waiting_for.empty() && (!first || connection.waits_until < *first)) {
      first = connection.waits_until;
    }
  }
  if (!first) {
    return -1;
  }
  const auto rest = std::chrono::ceil<milliseconds>(*first - now).count();
  return static_cast<int>(std::clamp<std::int64_t>(rest, 0, 60'000));
}

void RendezvousServer::serve() {
  for (;;) {
    std::vector<pollfd> polled = entries();
    ++rounds_;
    connected_ = connections_.size();
    if (poll(polled.data(), polled.size(), poll_time()) < 0) {
      if (errno == EINTR) {
        continue;
      }
      transport::log().error("rendezvous: poll failed: {}", std::generic_category().message(errno));
      return;
    }
    if (polled[0].revents != 0) {
      return;
    }
    auto entry = polled.begin() + 2;
    for (Connection& connection : connections_) {
      const short seen = entry++->revents;
      if ((seen & POLLOUT) != 0) {
        write_to(connection);
        answer_requests(connection);
      }
      if ((seen & POLLIN) != 0) {
        read_from(connection);
      } else if ((seen & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0) {
        connection.open = false;
      }
    }
    answer_late_gets();
    drop_closed();
    if (polled[1].revents != 0) {
      accept_all();
    }
  }
}

void RendezvousServer::answer_late_gets() {
  const TimePoint now = steady_clock::now();
  for (Connection& connection : connections_) {
    if (!connection.waiting_for.empty() && connection.waits_until <= now) {
      connection.waiting_for.clear();
      reply(connection, Result::kNothing, {});
      write_to(connection);
      answer_requests(connection);
    }
  }
}

void RendezvousServer::accept_all() {
  for (;;) {
    Descriptor socket(
        accept4(listener_.socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      const bool exhausted =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (errno == EINTR || errno == ECONNABORTED || (exhausted && free_descriptor())) {
        continue;
      }
      if (exhausted) {
        // The listener stays readable, so polling it would spin. The next client waits in its
        // queue.
        accepts_again_ = steady_clock::now() + kAcceptPause;
      }
      return;
    }
    if (strangers_ >= kMaxStrangers) {
      static_cast<void>(drop_stranger(TimePoint::max()));
    }
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(socket);
    connection.since = steady_clock::now();
    if (!secret_.empty()) {
      connection.handshake.emplace(secret_);
    }
    ++strangers_;
  }
}

bool RendezvousServer::free_descriptor() {
  const int cause = errno;
  if (cause == EMFILE && transport::raise_open_file_limit()) {
    return true;
  }
  if (drop_stranger(steady_clock::now() - kSilence)) {
    return true;
  }
  if (accepts_again_ == TimePoint{}) {  // logged once
    transport::log().warn(
        "the rendezvous cannot serve more than {} clients at a time: {}. Raise the limit of open "
        "files (ulimit -n) where rank 0 starts",
        connections_.size(), std::generic_category().message(cause));
  }
  errno = cause;
  return false;
}

/// Drops the oldest connection that has sent nothing valid, if it is older than `older_than`.
bool RendezvousServer::drop_stranger(TimePoint older_than) {
  for (auto connection = connections_.begin(); connection != connections_.end(); ++connection) {
    if (connection->is_client || connection->since > older_than) {
      continue;
    }
    read_from(*connection);  // the client may have sent something meanwhile
    if (!connection->is_client) {
      bytes_unanswered_ -= connection->input.size();
      connections_.erase(connection);
      --strangers_;
      return true;
    }
  }
  return false;
}

void RendezvousServer::read_from(Connection& connection) {
  std::array<char, 16384> buffer;
  while (connection.open && connection.waiting_for.empty() && !connection.has_unsent()) {
    const ssize_t got = recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      connection.input.append(buffer.data(), static_cast<std::size_t>(got));
      bytes_unanswered_ += static_cast<std::size_t>(got);
      answer_requests(connection);
      if (bytes_unanswered_ > kMaxUnanswered || connection.input.size() > 2 * kMaxRequest) {
        connection.open = false;
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
  while (connection.open && connection.has_unsent()) {
    const std::string_view head(connection.output);
    const std::string_view value =
        connection.value != nullptr ? std::string_view(connection.value->bytes) : "";
    const bool in_head = connection.sent < head.size();
    const std::string_view first = head.substr(std::min(connection.sent, head.size()));
    const std::string_view second = value.substr(in_head ? 0 : connection.sent - head.size());
    std::array<iovec, 2> parts{};
    parts[0] = {.iov_base = const_cast<char*>(first.data()), .iov_len = first.size()};
    parts[1] = {.iov_base = const_cast<char*>(second.data()), .iov_len = second.size()};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      connection.sent += static_cast<std::size_t>(sent);
      if (connection.sent == head.size() + value.size()) {
        connection.output.clear();
        connection.value.reset();
        connection.sent = 0;
      }
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      connection.open = false;
    }
  }
}

/// Counts the connection as a client from now on.
void RendezvousServer::welcome(Connection& connection) {
  if (std::exchange(connection.is_client, true)) {
    return;
  }
  --strangers_;
  const std::scoped_lock lock(mutex_);
  ++clients_;
}

bool RendezvousServer::shake_hands(Connection& connection) {
  const std::size_t before = connection.input.size();
  const auto admission = connection.handshake->receive(connection.input, connection.output);
  const std::size_t used = before - connection.input.size();
  bytes_unanswered_ -= used;
  if (admission == ServerHandshake::Admission::kAdmitted) {
    connection.handshake.reset();
    welcome(connection);
  }
  if (admission == ServerHandshake::Admission::kRefused) {
    connection.open = false;
    log_refusal(peer_address(connection.socket), ++refused_);
  }
  write_to(connection);
  return used > 0;
}

void RendezvousServer::answer_requests(Connection& connection) {
  while (connection.handshake) {
    if (!connection.open || connection.has_unsent() || !shake_hands(connection)) {
      return;
    }
  }
  std::size_t used = 0;
  // Send one answer at a time: a client that does not read its answers gets no more of them.
  while (connection.open && connection.waiting_for.empty() && !connection.has_unsent()) {
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
    welcome(connection);
    write_to(connection);
  }
  connection.input.erase(0, used);
  bytes_unanswered_ -= used;
}

void RendezvousServer::drop_closed() {
  std::size_t gone = 0;
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    if (connection->open) {
      ++connection;
      continue;
    }
    gone += connection->is_client ? 1 : 0;
    strangers_ -= connection->is_client ? 0 : 1;
    bytes_unanswered_ -= connection->input.size();
    connection = connections_.erase(connection);
    accepts_again_ = std::min(accepts_again_, steady_clock::now());
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
