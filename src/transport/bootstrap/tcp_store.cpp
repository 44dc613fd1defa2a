#include "src/transport/bootstrap/tcp_store.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "gtopk/error.hpp"
#include "gtopk/launch.hpp"
#include "src/transport/base/log.hpp"

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

/// Rank 0: the server lives as long as its own client, and a little longer for the others' last
/// requests.
class ServedStore final : public KeyValueStore {
 public:
  ServedStore(const Endpoint& server, Duration at_most)
      : at_most_(at_most),
        server_(std::in_place, RendezvousListener(Endpoint{.host = "", .port = server.port})),
        client_(std::in_place, Endpoint{.host = "localhost", .port = server_->port()}, at_most) {}
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;
  ServedStore(ServedStore&&) = delete;
  ServedStore& operator=(ServedStore&&) = delete;
  ~ServedStore() override {
    client_.reset();
    if (!server_->drain(at_most_)) {
      transport::log().warn("the rendezvous closes after {} with clients still connected",
                            describe(at_most_));
    }
  }

  void set(std::string_view key, std::string_view value) override { client_->set(key, value); }
  std::optional<std::string> find(std::string_view key, Duration at_most) override {
    return client_->find(key, at_most);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return client_->add(key, delta);
  }
  void remove(std::string_view key) override { client_->remove(key); }

 private:
  Duration at_most_;
  std::optional<RendezvousServer> server_;
  std::optional<TcpStore> client_;
};

}  // namespace

TcpStore::TcpStore(Endpoint server, Duration at_most)
    : server_(std::move(server)), at_most_(at_most) {}

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
                            to_string(server_), key));
  }
  return *sum;
}

std::optional<std::string> TcpStore::ask(Command command, std::string_view key,
                                         std::string_view value, Duration at_most) {
  const std::string request = encode_request(command, key, value);
  const std::scoped_lock lock(mutex_);
  const TimePoint deadline = std::chrono::steady_clock::now() + at_most;
  if (!socket_) {
    socket_ = connect_to(server_, std::min(at_most, at_most_));
  }
  std::array<char, kResponseHeader> header{};
  std::string answer;
  Result result = Result::kRefused;
  Transfer transfer = send_all(socket_, request, deadline);
  if (transfer == Transfer::kDone) {
    transfer = receive_all(socket_, header.data(), header.size(), deadline);
  }
  if (transfer == Transfer::kDone) {
    if (const auto parsed = parse_response(header)) {
      result = parsed->result;
      answer.resize(parsed->value_length);
      transfer = receive_all(socket_, answer.data(), answer.size(), deadline);
    } else {
      transfer = Transfer::kClosed;
    }
  }
  if (transfer == Transfer::kDone && result == Result::kOk) {
    return answer;
  }
  if (transfer == Transfer::kDone && result == Result::kNothing && command == Command::kGet) {
    return std::nullopt;
  }
  // A late answer must not be taken for the next one's: the next call connects anew.
  socket_ = Descriptor();
  const auto fail = [&](std::string_view reason) {
    return Error(ErrorKind::kBootstrap,
                 fmt::format("rendezvous at {}: {} '{}' {}", to_string(server_), name(command), key,
                             reason));
  };
  switch (transfer) {
    case Transfer::kTimedOut:
      throw fail(fmt::format("was not answered within {}", describe(at_most)));
    case Transfer::kClosed:
      throw fail("failed: the server is gone, or is no rendezvous of gtopk");
    case Transfer::kDone:
      break;
  }
  throw fail("was refused: the store is full");
}

}  // namespace gtopk::bootstrap

namespace gtopk {

std::unique_ptr<KeyValueStore> join_rendezvous(const LaunchEnvironment& environment,
                                               std::chrono::nanoseconds at_most) {
  const bootstrap::Endpoint server{.host = environment.host, .port = environment.port};
  if (environment.rank == 0) return std::make_unique<bootstrap::ServedStore>(server, at_most);
  return std::make_unique<bootstrap::TcpStore>(server, at_most);
}

}  // namespace gtopk
