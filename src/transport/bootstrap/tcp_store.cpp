#include "src/transport/bootstrap/tcp_store.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/bootstrap/handshake.hpp"

namespace gtopk::bootstrap {
namespace {

std::string_view name(Command command) {
  switch (command) {
    case Command::kSet:
      return "set";
    case Command::kGet:
      return "get";
    case Command::kAdd:
      return "add";
    case Command::kRemove:
      return "remove";
  }
  return "unknown";
}

/// The first pause between attempts at a server that turns this client away. All pauses take about
/// 0.3 s.
constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLastPause{160};

/// The outcome of a request.
struct Exchange {
  Transfer transfer = Transfer::kClosed;
  bool begun = false;  ///< part of an answer has arrived
  Result result = Result::kRefused;
  std::string answer;
};

Exchange exchange_on(const Descriptor& socket, std::string_view request, TimePoint deadline) {
  Exchange done;
  std::array<char, kResponseHeader> header{};
  done.transfer = send_all(socket, request, deadline);
  if (done.transfer != Transfer::kDone) {
    return done;
  }
  done.transfer = receive_all(socket, header.data(), header.size(), deadline);
  if (done.transfer != Transfer::kDone) {
    return done;
  }
  done.begun = true;
  const auto parsed = parse_response(header);
  if (!parsed) {
    done.transfer = Transfer::kClosed;
    return done;
  }
  done.result = parsed->result;
  done.answer.resize(parsed->value_length);
  done.transfer = receive_all(socket, done.answer.data(), done.answer.size(), deadline);
  return done;
}

}  // namespace

TcpStore::TcpStore(Endpoint server, Duration at_most)
    : TcpStore(std::vector{std::move(server)}, at_most) {}

TcpStore::TcpStore(std::vector<Endpoint> ways, Duration at_most, std::string secret)
    : ways_(std::move(ways)), secret_(std::move(secret)), at_most_(at_most) {}

void warn_of_clients(Duration waited) {
  transport::log().warn("the rendezvous closes after {} with clients still connected",
                        describe(waited));
}

void TcpStore::set(std::string_view key, std::string_view value) {
  static_cast<void>(ask(Command::kSet, key, value, at_most_));
}

std::optional<std::string> TcpStore::find(std::string_view key, Duration at_most) {
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(at_most);
  return ask(Command::kGet, key, encode_integer(wait.count()), at_most + at_most_);
}

void TcpStore::remove(std::string_view key) {
  try {
    ask(Command::kRemove, key, {}, at_most_);
  } catch (const Error& error) {
    transport::log().debug("{}", error.what());
  }
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  const auto answer = ask(Command::kAdd, key, encode_integer(delta), at_most_);
  const auto sum = decode_integer(answer.value_or(""));
  if (!sum) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("rendezvous at {}: add '{}' was not answered with a number",
                            to_string(ways_), key));
  }
  return *sum;
}

Greeting TcpStore::greeting() const {
  if (secret_.empty()) {
    return {};
  }
  return [secret = secret_](const Descriptor& socket, TimePoint end) -> std::optional<Refusal> {
    const ClientHandshake handshake(secret);
    std::array<char, kChallengeBytes> challenge{};
    if (send_all(socket, handshake.hello(), end) != Transfer::kDone ||
        receive_all(socket, challenge.data(), challenge.size(), end) != Transfer::kDone) {
      return Refusal{.reason =
                         "the server there did not prove that it knows a secret (GTOPK_SECRET)"};
    }
    const auto reply = handshake.reply_to({challenge.data(), challenge.size()});
    // A wrong proof is sent as well, so that the server can log a client with another secret.
    const std::string proof = reply.value_or(std::string(kProofBytes, '\0'));
    const bool sent = send_all(socket, proof, end) == Transfer::kDone;
    if (!reply) {
      return Refusal{.reason = "the server there has another secret (GTOPK_SECRET)", .final = true};
    }
    return sent ? std::nullopt : std::optional(Refusal{.reason = "the connection was closed"});
  };
}

std::string TcpStore::server_address() {
  const std::scoped_lock lock(mutex_);
  return socket_ ? peer_address(socket_) : "";
}

std::optional<std::string> TcpStore::ask(Command command, std::string_view key,
                                         std::string_view value, Duration at_most) {
  const std::string request = encode_request(command, key, value);
  const std::scoped_lock lock(mutex_);
  const TimePoint deadline = std::chrono::steady_clock::now() + at_most;
  Exchange exchange;
  for (auto pause = kFirstPause;; pause *= 2) {
    const bool fresh = !socket_;
    if (fresh) {
      socket_ = connect_to(ways_, std::min(at_most, at_most_), greeting());
    }
    exchange = exchange_on(socket_, request, deadline);
    // An overloaded server may have dropped a new connection as a stranger's before the request
    // arrived; it answers every request that it has read.
    const bool turned_away = fresh && exchange.transfer == Transfer::kClosed && !exchange.begun;
    if (!turned_away || pause > kLastPause) {
      break;
    }
    socket_ = Descriptor();
    std::this_thread::sleep_for(pause);
  }
  const bool done = exchange.transfer == Transfer::kDone;
  if (done && exchange.result == Result::kOk) {
    return std::move(exchange.answer);
  }
  if (done && exchange.result == Result::kNothing && command == Command::kGet) {
    return std::nullopt;
  }
  // A late answer must not be mistaken for the answer to the next request, so the next call
  // reconnects.
  socket_ = Descriptor();
  const auto fail = [&](std::string_view reason) {
    return Error(ErrorKind::kBootstrap, fmt::format("rendezvous at {}: {} '{}' {}",
                                                    to_string(ways_), name(command), key, reason));
  };
  switch (exchange.transfer) {
    case Transfer::kTimedOut:
      throw fail(fmt::format("was not answered within {}", describe(at_most)));
    case Transfer::kClosed:
      throw fail(secret_.empty()
                     ? "failed: the server is gone, or is not a gtopk rendezvous, or wants a "
                       "secret (GTOPK_SECRET)"
                     : "failed: the server is gone, or is not a gtopk rendezvous");
    case Transfer::kDone:
      break;
  }
  throw fail("was refused: the store is full");
}

}  // namespace gtopk::bootstrap
