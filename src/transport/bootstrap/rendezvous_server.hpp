// Bootstrap: the server of the plain TCP rendezvous. It keeps a dictionary and a dictionary of
// counters in bounded memory, and drops clients that do not speak its protocol. It does not know
// ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include <poll.h>

#include "src/transport/bootstrap/frame.hpp"
#include "src/transport/bootstrap/handshake.hpp"
#include "src/transport/bootstrap/socket.hpp"

namespace gtopk::bootstrap {

/// A bound socket, separate from its server, so that a program that forks can learn the port first
/// and start the server's thread afterwards.
class RendezvousListener {
 public:
  /// Port 0 lets the system choose; an empty host means every interface.
  explicit RendezvousListener(const Endpoint& endpoint);

  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  friend class RendezvousServer;
  Descriptor socket_;
  std::uint16_t port_ = 0;
};

/// Serves on its own thread until destroyed.
class RendezvousServer {
 public:
  /// The most connections at a time without a valid request; the oldest are dropped first.
  static constexpr std::size_t kMaxStrangers = 1024;
  /// The most bytes of keys and values, including values that clients have yet to read.
  static constexpr std::size_t kMaxKept = std::size_t{256} << 20U;
  /// The most bytes of partial requests over all connections.
  static constexpr std::size_t kMaxUnanswered = std::size_t{64} << 20U;

  /// Starts serving. With a secret, clients that do not prove that they know it are dropped, which
  /// is logged.
  explicit RendezvousServer(RendezvousListener listener, std::string secret = {});
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;
  RendezvousServer(RendezvousServer&&) = delete;
  RendezvousServer& operator=(RendezvousServer&&) = delete;
  ~RendezvousServer();

  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }

  /// Waits until no client is connected; false if `at_most` passes first.
  bool drain(Duration at_most);

  /// The server's current load.
  struct Load {
    std::uint64_t rounds = 0;  ///< number of polls since its start
    std::size_t bytes = 0;     ///< bytes of keys, values, and pending requests and answers
    std::size_t keys = 0;      ///< number of values and counters
    std::size_t connections = 0;
    std::size_t refused = 0;  ///< clients that did not know the secret, since its start
  };
  [[nodiscard]] Load load() const;

 private:
  /// A value that counts towards `kept` from construction until every client has read it.
  struct Value {
    Value(std::string_view content, std::atomic<std::size_t>& kept);
    Value(const Value&) = delete;
    Value& operator=(const Value&) = delete;
    Value(Value&&) = delete;
    Value& operator=(Value&&) = delete;
    ~Value();

    std::string bytes;
    std::atomic<std::size_t>& kept;
  };

  struct Connection {
    Descriptor socket;
    TimePoint since{};
    std::string input;
    std::string output;  ///< a short answer, or the bytes that precede `value`
    std::shared_ptr<const Value> value;
    std::size_t sent = 0;                      ///< bytes of the answer sent so far
    std::string waiting_for;                   ///< key of an unanswered get
    TimePoint waits_until{};                   ///< when that get times out
    bool is_client = false;                    ///< it has sent a whole request or proved itself
    std::optional<ServerHandshake> handshake;  ///< until it has proved the secret
    bool open = true;

    [[nodiscard]] bool has_unsent() const { return !output.empty(); }
  };

  void serve();
  [[nodiscard]] std::vector<pollfd> entries() const;
  [[nodiscard]] int poll_time() const;
  void answer_late_gets();
  void accept_all();
  [[nodiscard]] bool free_descriptor();
  [[nodiscard]] bool drop_stranger(TimePoint older_than);
  void read_from(Connection& connection);
  void write_to(Connection& connection);
  void answer_requests(Connection& connection);
  void welcome(Connection& connection);
  /// Continues the handshake; returns false if it needs more input.
  [[nodiscard]] bool shake_hands(Connection& connection);
  [[nodiscard]] bool answer(Connection& connection, const RequestView& request);
  static void reply(Connection& connection, Result result, std::string_view value);
  static void reply(Connection& connection, std::shared_ptr<const Value> value);
  [[nodiscard]] bool store(std::string_view key, std::string_view value);
  void forget(const std::string& key);
  void drop_closed();

  RendezvousListener listener_;
  std::string secret_;  ///< if empty, all clients are admitted
  Descriptor stop_;
  std::list<Connection> connections_;
  std::atomic<std::size_t> bytes_kept_{0};  ///< declared before the values, which subtract
                                            ///< themselves from it
  std::unordered_map<std::string, std::shared_ptr<const Value>> values_;
  std::unordered_map<std::string, std::int64_t> counters_;
  std::size_t strangers_ = 0;
  std::atomic<std::size_t> bytes_unanswered_{0};
  std::atomic<std::size_t> keys_{0};
  std::atomic<std::size_t> connected_{0};
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::size_t> refused_{0};
  TimePoint accepts_again_{};  ///< in the future while there is no descriptor for another client

  std::mutex mutex_;  ///< guards clients_
  std::condition_variable changed_;
  std::size_t clients_ = 0;

  std::thread thread_;  ///< declared last because it uses all of the above
};

}  // namespace gtopk::bootstrap
