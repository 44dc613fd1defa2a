// Bootstrap: a client of the plain TCP rendezvous. join_rendezvous (gtopk/launch.hpp) puts the two
// halves together: rank 0 serves, everybody connects.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "gtopk/key_value_store.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"

namespace gtopk::bootstrap {

class TcpStore final : public KeyValueStore {
 public:
  /// Connects at the first use, trying for `at_most`, which is also the limit of each set and add.
  TcpStore(Endpoint server, Duration at_most);

  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> find(std::string_view key, Duration at_most) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  void remove(std::string_view key) override;

 private:
  /// Nothing when the server answers that it has nothing.
  std::optional<std::string> ask(Command command, std::string_view key, std::string_view value,
                                 Duration at_most);

  Endpoint server_;
  Duration at_most_;
  std::mutex mutex_;  ///< of the socket: one question at a time
  Descriptor socket_;
};

}  // namespace gtopk::bootstrap
