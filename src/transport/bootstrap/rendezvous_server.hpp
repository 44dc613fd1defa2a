// Bootstrap: the server of the plain TCP rendezvous. It keeps a dictionary and a dictionary of
// counters in memory, bounded in every direction, and drops whoever does not speak its protocol. It
// knows no ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "transport/bootstrap/frame.hpp"
#include "transport/bootstrap/socket.hpp"

namespace gtopk::bootstrap {

/// A bound socket, made apart from its server: whoever forks learns the port first and starts the
/// server's thread afterwards.
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

/// Serves from a thread of its own until it is destroyed.
class RendezvousServer {
 public:
  explicit RendezvousServer(RendezvousListener listener);
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;
  RendezvousServer(RendezvousServer&&) = delete;
  RendezvousServer& operator=(RendezvousServer&&) = delete;
  ~RendezvousServer();

  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }

  /// Waits until no client is connected; false when `at_most` passed first.
  bool drain(Duration at_most);

 private:
  struct Connection {
    Descriptor socket;
    std::string input;
    std::string output;
    std::string waiting_for;  ///< key of a get that is not answered yet
    bool is_client = false;   ///< has sent a whole request
    bool open = true;
  };

  void serve();
  void accept_all();
  void read_from(Connection& connection);
  void write_to(Connection& connection);
  void answer_requests(Connection& connection);
  [[nodiscard]] bool answer(Connection& connection, const RequestView& request);
  [[nodiscard]] bool store(std::string_view key, std::string_view value);
  void drop_closed();

  RendezvousListener listener_;
  Descriptor stop_;
  std::list<Connection> connections_;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::int64_t> counters_;
  std::size_t bytes_kept_ = 0;

  std::mutex mutex_;  ///< of clients_
  std::condition_variable changed_;
  std::size_t clients_ = 0;

  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace gtopk::bootstrap
