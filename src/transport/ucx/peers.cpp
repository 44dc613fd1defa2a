// Transport over UCX: peers introduced by card or address, and addresses that come later.
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/ucx/transport_state.hpp"

namespace gtopk::transport {

std::string UcxTransport::card() const {
  return encode(UcxAddress{.process = self_, .key = key_, .worker = {}});
}

PeerId UcxTransport::add_peer(std::string_view blob) {
  check_process();
  UcxAddress address = decode_ucx_address(blob);
  if (address.key == 0) {
    throw Error(ErrorKind::kBootstrap, fmt::format("the card given for {} pid {} is its address",
                                                   address.process.host, address.process.process));
  }
  const auto [entry, fresh] =
      known_.try_emplace(address.process.identity, static_cast<PeerId>(endpoints_.size()));
  if (fresh) {
    // The own worker's address is known.
    if (address.process.identity == self_.identity) {
      address.worker = worker_.address();
    }
    endpoints_.emplace_back(std::move(address), attention_);
  }
  return entry->second;
}

void UcxTransport::prepare(PeerId peer) {
  const UcxEndpoint& endpoint = endpoints_.at(peer);
  if (!closed_ && !endpoint.has_address() && endpoint.state() == UcxEndpoint::State::kUnconnected) {
    ask_for_address(peer);
  }
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
                fmt::format("what is published as the UCX address of {} pid {} is not: it is {} "
                            "of {} pid {}",
                            endpoint.info().host, endpoint.info().process,
                            address.worker.empty() ? "the card" : "the address",
                            address.process.host, address.process.process));
  }
  const bool wanted = std::exchange(endpoint.asked, false);
  endpoint.unreachable.clear();
  if (closed_ || endpoint.has_address() || endpoint.state() == UcxEndpoint::State::kEnded) {
    return;
  }
  endpoint.set_worker(std::move(address.worker));
  if (!wanted || !connect(peer)) {
    return;  // not yet; or it is marked broken, and its messages fail with it
  }
  for (const HeldSend& send : std::exchange(endpoint.held, {})) {
    post_send(send);
  }
}

void UcxTransport::no_address(PeerId peer, const std::string& reason) {
  UcxEndpoint& endpoint = endpoints_.at(peer);
  endpoint.asked = false;
  endpoint.unreachable = fmt::format("its address could not be looked up: {}", reason);
  fail_held(endpoint);
  // Otherwise receives from the peer might wait until their deadlines, as the peer may be unable to
  // send, too.
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
  return endpoints_.at(peer).unreachable;
}

}  // namespace gtopk::transport
