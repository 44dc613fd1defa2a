// Transport over UCX: one peer, its endpoint, and the requests pending on it. It does not know
// other peers.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/base/request.hpp"
#include "src/transport/base/transport.hpp"
#include "src/transport/ucx/address.hpp"
#include "src/transport/ucx/connections.hpp"
#include "src/transport/ucx/worker.hpp"

namespace gtopk::transport {

/// Requests that UCX has not completed yet, linked through the requests themselves.
class PendingRequests {
 public:
  [[nodiscard]] bool empty() const { return first_ == nullptr; }
  /// Whether there are any receives or, with `receives` false, any sends.
  [[nodiscard]] bool any(bool receives) const;
  /// Whether there are any requests, except receives that do not connect, which may wait forever.
  [[nodiscard]] bool any_awaited() const;
  [[nodiscard]] Request* first() const { return first_; }
  void add(Request& request);
  void remove(Request& request);

 private:
  Request* first_ = nullptr;
};

/// A send that waits for its peer's address, or for a free connection.
struct HeldSend {
  Request* request = nullptr;
  ConstBytes data{};
};

class UcxEndpoint {
 public:
  /// How often a peer's round trip is looked up, once each time that the peer sends something. Its
  /// socket may not be connected yet, or may have an address that is not known here.
  static constexpr unsigned kLooks = 8;

  enum class State : std::uint8_t {
    kUnconnected,
    kConnected,
    kEnded,  ///< broken, given up or closed; final
  };

  /// `attention` is set from inside UCX when the endpoint breaks.
  UcxEndpoint(UcxAddress address, bool& attention)
      : address_(std::move(address)), attention_(attention) {}
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;
  UcxEndpoint(UcxEndpoint&&) = delete;
  UcxEndpoint& operator=(UcxEndpoint&&) = delete;
  ~UcxEndpoint() = default;  // it ends with its worker, unless begin_close was called before

  [[nodiscard]] const PeerInfo& info() const { return address_.process; }
  /// The tag under which this peer, and no other process, accepts `tag`.
  [[nodiscard]] Tag sealed(Tag tag) const { return tag ^ address_.key; }
  [[nodiscard]] State state() const { return state_; }
  /// The connections; there are none before it connects.
  [[nodiscard]] const Connections& connections() const { return connections_; }
  [[nodiscard]] Connections& connections() { return connections_; }

  /// Whether the address is known; false while the peer is known only by its card.
  [[nodiscard]] bool has_address() const { return !address_.worker.empty(); }
  void set_address(UcxAddress address) {
    address_.worker = std::move(address.worker);
    address_.tcp = std::move(address.tcp);
  }
  [[nodiscard]] const std::vector<TcpAddress>& tcp_addresses() const { return address_.tcp; }

  /// Connects an unconnected endpoint, whose address must be known. Returns false if it cannot even
  /// begin.
  [[nodiscard]] bool connect(const UcxWorker& worker, const HostIdentity& here);
  /// Opens connections until there are `connections`, if they use TCP. Returns false if one cannot
  /// begin.
  [[nodiscard]] bool widen(const UcxWorker& worker, std::uint32_t connections);
  /// Whether its round trip must still be looked up. It then uses TCP, so several connections may
  /// help.
  [[nodiscard]] bool unmeasured() const { return looks < kLooks && streams_ && usable(false); }
  /// Whether the endpoint is usable. Sends need every connection; receives need any connection.
  [[nodiscard]] bool usable(bool for_receives) const {
    return state_ == State::kConnected && (failure_ == UCS_OK || (for_receives && !broke()));
  }

  /// The transports that UCX has chosen for it, such as "posix/memory, tcp/eth0"; empty before it
  /// connects.
  [[nodiscard]] const std::string& lanes() const { return lanes_; }
  [[nodiscard]] bool shares_memory() const { return shares_memory_; }
  /// Whether UCX could not begin to connect because neither end has what the other needs.
  [[nodiscard]] bool has_no_route() const { return failure_ == UCS_ERR_UNREACHABLE; }
  /// Whether the peer's messages end this process's sleep. Shared memory itself has no wake-ups,
  /// and the wake-ups that UCX sends with it do not cross network namespaces.
  [[nodiscard]] bool wakes() const { return wakes_; }
  /// Whether nothing that the peer sent can still arrive, because its connection or its process is
  /// gone. False for an endpoint that was given up, because the peer's end of it may be open.
  [[nodiscard]] bool cut_off() const {
    return process_ended_ || (failure_ != UCS_OK && !shares_memory_ && all_failed());
  }

  /// Must be called when the peer's process has ended and everything it sent has been received. The
  /// endpoint then breaks.
  void process_has_ended();
  [[nodiscard]] bool process_ended() const { return process_ended_; }

  /// Whether UCX has reported a failure that has not been handled yet. If there are several
  /// connections, all must have failed (they fail one after the other when the peer leaves or
  /// dies), or one must have failed a while ago, because messages that arrive over the others, such
  /// as a goodbye, come first.
  [[nodiscard]] bool broke() const;
  /// Whether some of its connections have failed, but it is not broken yet.
  [[nodiscard]] bool half_broken() const {
    return state_ == State::kConnected && failure_ != UCS_OK && !broke();
  }
  [[nodiscard]] std::string failure_reason() const;

  /// Starts flushing; appends UCX's three-way statuses that are requests.
  void begin_flush(std::vector<ucs_status_ptr_t>& flushes);
  /// Marks the endpoint as ended; from now on, nothing new is posted.
  void mark_ended();
  /// Force-closes an ended endpoint, which completes its sends; appends requests likewise.
  void begin_close(std::vector<ucs_status_ptr_t>& closing);

  PendingRequests pending;
  std::deque<HeldSend> held;  ///< oldest first; these are pending, too
  bool asked = false;         ///< whether its address is being looked up
  bool reached = false;       ///< whether a message has been sent or received
  unsigned looks = 0;         ///< how often its round trip was looked up; see kLooks
  std::string unreachable;    ///< why the last attempt to connect could not begin
  bool departure_expected = false;
  bool lost = false;  ///< it ended without a departure, and the peer's process may be alive
  TimePoint ended_at{};

 private:
  static void on_error(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  [[nodiscard]] bool add_connection(const UcxWorker& worker);
  void look_at_lanes(const HostIdentity& here);
  [[nodiscard]] bool all_failed() const { return failed_ >= connections_.count(); }

  UcxAddress address_;
  bool& attention_;
  Connections connections_;
  std::size_t failed_ = 0;  ///< the number of failed connections
  TimePoint failed_at_{};   ///< when the first one failed
  State state_ = State::kUnconnected;
  std::string lanes_;
  bool shares_memory_ = false;
  bool streams_ = false;  ///< whether it uses TCP
  bool wakes_ = true;
  bool process_ended_ = false;
  ucs_status_t failure_ = UCS_OK;
};

}  // namespace gtopk::transport
