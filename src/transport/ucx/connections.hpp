// Transport over UCX: the connections to one peer: how many there are, and which of them carries a
// message.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/base/request.hpp"
#include "src/transport/ucx/worker.hpp"

namespace gtopk::transport {

/// Returns how many connections fill a link with this round trip. After a loss, a TCP connection
/// takes a number of round trips to recover its rate, so one suffices on a short link.
[[nodiscard]] std::uint32_t connections_for(Duration round_trip);

class Connections {
 public:
  /// Opens one more connection. `on_error` is called with `argument` inside UCX when it breaks.
  [[nodiscard]] ucs_status_t open(const UcxWorker& worker, std::string_view address,
                                  ucp_err_handler_cb_t on_error, void* argument);

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(all_.size()); }
  /// All handles.
  [[nodiscard]] std::vector<ucp_ep_h> handles() const;

  /// The handle for a send. With kAnyConnection, it is a connection that carries no other such
  /// send, and it belongs to this send until released(); null if there is none.
  [[nodiscard]] ucp_ep_h choose(Request& send);
  /// Must be called when a send has completed.
  void released(const Request& send);

  void clear() { all_.clear(); }

 private:
  struct Connection {
    ucp_ep_h handle = nullptr;
    bool taken = false;
  };
  std::vector<Connection> all_;
  std::uint32_t next_ = 0;  ///< the connection whose turn it is, if it is free
};

}  // namespace gtopk::transport
