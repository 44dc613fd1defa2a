// Transport over UCX: peers introduced by card or address, and addresses that arrive later.
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/base/shortage.hpp"
#include "src/transport/ucx/posix_space.hpp"
#include "src/transport/ucx/transport_state.hpp"

namespace gtopk::transport {
namespace {

// A connection needs a socket or two, a timer, and descriptors that UCX opens briefly.
constexpr std::size_t kDescriptorsOfConnection = 7;

/// The time for a diagnosis. Hosts that answer at all do so in a few milliseconds.
constexpr Duration kDiagnosisBound = std::chrono::milliseconds(200);

}  // namespace

std::string UcxTransport::card() const {
  return encode(UcxAddress{.process = self_, .key = key_, .worker = {}});
}

PeerId UcxTransport::add_peer(std::string_view blob) {
  check_process();
  UcxAddress address = decode_ucx_address(blob);
  if (address.key == 0) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("expected the card of {} pid {}, got its address", address.process.host,
                            address.process.process));
  }
  const auto [entry, fresh] =
      known_.try_emplace(address.process.identity, static_cast<PeerId>(endpoints_.size()));
  if (fresh) {
    // This worker's own address is known.
    if (address.process.identity == self_.identity) {
      address.worker = worker_.address();
    }
    endpoints_.emplace_back(std::move(address), attention_);
  }
  return entry->second;
}

void UcxTransport::ask_for_address(PeerId peer) {
  if (!std::exchange(endpoints_[peer].asked, true) && book_ != nullptr) {
    book_->look_up(peer);
  }
}

void UcxTransport::set_address(PeerId peer, std::string_view blob) {
  check_process();
  UcxEndpoint& endpoint = endpoints_.at(peer);
  UcxAddress address = decode_ucx_address(blob);
  if (address.process.identity != endpoint.info().identity || address.worker.empty()) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("expected the UCX address of {} pid {} to be published, found {} of {} "
                            "pid {}",
                            endpoint.info().host, endpoint.info().process,
                            address.worker.empty() ? "the card" : "the address",
                            address.process.host, address.process.process));
  }
  const bool wanted = std::exchange(endpoint.asked, false);
  endpoint.unreachable.clear();
  if (closed_ || endpoint.has_address() || endpoint.state() == UcxEndpoint::State::kEnded) {
    return;
  }
  endpoint.set_address(std::move(address));
  if (!wanted) {
    return;
  }
  bool begun = connect(peer, false);
  if (!begun && !endpoint.unreachable.empty()) {
    fail_waiting(endpoint, false);
    begun = !endpoint.held.empty() && connect(peer, true);
  }
  if (!begun) {
    if (!endpoint.broke()) {  // a broken endpoint fails its messages itself
      fail_waiting(endpoint, true);
    }
    return;
  }
  for (const HeldSend& send : std::exchange(endpoint.held, {})) {
    if (!post_send(send)) {
      endpoint.held.push_back(send);
    }
  }
}

void UcxTransport::no_address(PeerId peer, const std::string& reason) {
  UcxEndpoint& endpoint = endpoints_.at(peer);
  endpoint.asked = false;
  endpoint.unreachable = fmt::format("its address could not be looked up: {}", reason);
  fail_waiting(endpoint, true);
}

bool UcxTransport::has_descriptors(UcxEndpoint& endpoint, bool for_notice) {
  const std::size_t needed = kDescriptorsOfConnection + connections_;
  const std::string shortage = descriptor_shortage(needed);
  if (shortage.empty()) {
    endpoint.unreachable.clear();
    if (!reserve_.is_full() && descriptor_shortage(needed + DescriptorReserve::kSize).empty()) {
      reserve_.fill();
    }
    return true;
  }
  endpoint.unreachable = fmt::format("cannot connect to it: {}", shortage);
  if (for_notice) {
    reserve_.release();
  }
  return for_notice && descriptor_shortage(needed).empty();
}

/// With GTOPK_CONNECTIONS=auto: opens more connections to peers that are far away.
void UcxTransport::measure_round_trips() {
  some_unmeasured_ = false;
  for (UcxEndpoint& endpoint : endpoints_) {
    if (closed_ || endpoint.departure_expected || !endpoint.unmeasured()) {
      continue;
    }
    const std::optional<Duration> round_trip = worker_.round_trip(endpoint.tcp_addresses());
    endpoint.looks = round_trip ? UcxEndpoint::kLooks : endpoint.looks + 1;
    const std::uint32_t wanted = round_trip ? connections_for(*round_trip) : 1;
    if (wanted > 1 && descriptor_shortage(kDescriptorsOfConnection + wanted).empty() &&
        endpoint.widen(worker_, wanted)) {
      worker_.expect_connection();
    }
  }
}

/// Fails the messages that wait for a connection to begin.
void UcxTransport::fail_waiting(UcxEndpoint& endpoint, bool notices_too) {
  const auto stays = [notices_too](const HeldSend& send) {
    return !notices_too && send.request->urgent;
  };
  std::deque<HeldSend> failing;
  for (const HeldSend& send : std::exchange(endpoint.held, {})) {
    (stays(send) ? endpoint.held : failing).push_back(send);
  }
  for (const HeldSend& send : failing) {
    finish(*send.request, Status::kPeerFailed, 0);
  }
  // Otherwise receives from the peer might wait until their deadlines, because the peer may be
  // unable to send, too.
  for (Request* request = endpoint.pending.first(); request != nullptr;) {
    Request* const next = request->next;
    if (request->connects) {
      cancel(*request);
    }
    request = next;
  }
}

void UcxTransport::fail_held(UcxEndpoint& endpoint) {
  for (const HeldSend& send : std::exchange(endpoint.held, {})) {
    finish(*send.request, Status::kPeerFailed, 0);
  }
}

std::string UcxTransport::why_unreachable(PeerId peer) const {
  return closed_ ? "UCX has been shut down here" : endpoints_.at(peer).unreachable;
}

PeerFailure UcxTransport::failure_of(PeerId peer) const {
  const UcxEndpoint& endpoint = endpoints_[peer];
  PeerFailure failure{.peer = peer,
                      .reason = endpoint.failure_reason(),
                      .never_reached = !endpoint.reached && !endpoint.process_ended()};
  if (endpoint.has_no_route()) {
    const std::string families =
        diagnose_families(worker_.tcp_addresses(), endpoint.tcp_addresses());
    if (!families.empty()) {
      failure.reason = families;
      return failure;
    }
    if (const std::string shortage = posix_shortage(config_.value("TLS")); !shortage.empty()) {
      failure.reason += fmt::format(". Here {}", shortage);
    }
  }
  if (failure.never_reached && !endpoint.shares_memory()) {
    const bool same_network =
        endpoint.info().place.network_namespace == self_.place.network_namespace &&
        endpoint.info().place.boot == self_.place.boot;
    std::vector<TcpAddress> there = endpoint.tcp_addresses();
    std::erase_if(there,
                  [&](const TcpAddress& each) { return each.is_loopback() && !same_network; });
    failure.diagnose = [there = std::move(there)] {
      return diagnose_connections(there, kDiagnosisBound);
    };
  }
  return failure;
}

/// Checks whether UCX has closed its port, which it does for good if it cannot accept a connection.
void UcxTransport::check_listeners() {
  if (deaf_ || !worker_.has_lost_listener()) {
    return;
  }
  const auto self = known_.find(self_.identity);
  if (self == known_.end()) {
    return;  // the peer is in no group that could fail
  }
  deaf_ = true;
  const std::string shortage = descriptor_shortage(kDescriptorsOfConnection);
  failures_.push_back(
      {.peer = self->second,
       .reason =
           fmt::format("UCX could not accept a connection, and no rank can connect to this "
                       "process any more: {}",
                       shortage.empty() ? "was it out of file descriptors (ulimit -n)?" : shortage),
       .never_reached = true});
}

}  // namespace gtopk::transport
