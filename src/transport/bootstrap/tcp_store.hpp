// Bootstrap: a client of the plain TCP rendezvous, and the client that has the server with it.
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
  /// Connects at the first use, trying for `at_most`, which is also the limit of each set and add.
  TcpStore(Endpoint server, Duration at_most);
  /// The same, of a server that can be reached in several ways. With a secret, only one that proves
  /// to know it is taken for the job's.
  TcpStore(std::vector<Endpoint> ways, Duration at_most, std::string secret = {});

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> find(std::string_view key, Duration at_most) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  void remove(std::string_view key) override;

  /// Of the server that answered last; "" before one has.
  [[nodiscard]] std::string server_address();

 private:
  /// Nothing when the server answers that it has nothing.
  std::optional<std::string> ask(Command command, std::string_view key, std::string_view value,
                                 Duration at_most);

  [[nodiscard]] Greeting greeting() const;

  std::vector<Endpoint> ways_;
  std::string secret_;  ///< empty: none is asked for
  Duration at_most_;
  std::mutex mutex_;  ///< of the socket: one question at a time
  Descriptor socket_;
};

/// The store of the process that serves it, which when it is destroyed keeps on serving until the
/// others have left, but no longer than `at_most`.
[[nodiscard]] std::unique_ptr<KeyValueStore> serve(RendezvousListener listener, Duration at_most,
                                                   const std::string& secret = {});

/// Logs that a server ends although others may still need it.
void warn_of_clients(Duration waited);

}  // namespace gtopk::bootstrap
