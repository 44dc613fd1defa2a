// Bootstrap: a client of the plain TCP rendezvous.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/key_value_store.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"

namespace gtopk::bootstrap {

class TcpStore final : public KeyValueStore {
 public:
  /// Connects at first use, retrying for `at_most`, which also limits each set and add.
  TcpStore(Endpoint server, Duration at_most);
  /// The same, for a server with several addresses. With a secret, accepts only a server that
  /// proves that it knows it.
  TcpStore(std::vector<Endpoint> ways, Duration at_most, std::string secret = {});

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> find(std::string_view key, Duration at_most) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  void remove(std::string_view key) override;

  /// The address of the server that answered last; "" before one has.
  [[nodiscard]] std::string server_address();

 private:
  /// Sends a request; returns nullopt if the server answers kNothing.
  std::optional<std::string> ask(Command command, std::string_view key, std::string_view value,
                                 Duration at_most);

  [[nodiscard]] Greeting greeting() const;

  std::vector<Endpoint> ways_;
  std::string secret_;  ///< if empty, there is no handshake
  Duration at_most_;
  std::mutex mutex_;  ///< guards the socket: one request at a time
  Descriptor socket_;
};

/// Logs that a server ends while others may still need it.
void warn_of_clients(Duration waited);

}  // namespace gtopk::bootstrap
