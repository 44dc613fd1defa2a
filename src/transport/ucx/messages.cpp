// Transport over UCX: messages, from their start to their completion.
#include <utility>

#include "src/transport/ucx/status.hpp"
#include "src/transport/ucx/transport_state.hpp"

namespace gtopk::transport {

ucp_request_param_t UcxTransport::parameters(Request& request, Memory memory) const {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.request = ucx_request(request);
  params.user_data = &request;
  const bool host = memory.is_host() || device_pointers_ == DevicePointers::kAsHost;
  params.memory_type = host ? UCS_MEMORY_TYPE_HOST : UCS_MEMORY_TYPE_CUDA;
  return params;
}

void UcxTransport::send(PeerId peer, Tag tag, ConstBytes data, Request& request) {
  if (!begin(peer, tag, false, request)) {
    return;
  }
  UcxEndpoint& endpoint = endpoints_[peer];
  request.bytes = data.size();
  request.taken = kAnyConnection;
  const HeldSend send{.request = &request, .data = data};
  if (endpoint.state() == UcxEndpoint::State::kUnconnected || !post_send(send)) {
    endpoint.held.push_back(send);
  }
}

/// Posts a send; returns false if no connection is free.
bool UcxTransport::post_send(const HeldSend& send) {
  Request& request = *send.request;
  UcxEndpoint& endpoint = endpoints_[request.peer];
  const ucp_ep_h connection = endpoint.connections().choose(request);
  if (connection == nullptr) {
    return false;
  }
  ucp_request_param_t params = parameters(request, send.data.memory());
  params.cb.send = &UcxTransport::on_sent;
  const ucs_status_ptr_t answer = ucp_tag_send_nbx(connection, send.data.data(), send.data.size(),
                                                   endpoint.sealed(request.tag), &params);
  if (answer == nullptr) {
    finish(request, Status::kOk, send.data.size());
  } else if (UCS_PTR_IS_ERR(answer)) {
    finish(request, message_status(UCS_PTR_STATUS(answer)), 0);
  }
  return true;
}

/// Posts held sends. A send that completes at once calls this function again.
void UcxTransport::post_held(UcxEndpoint& endpoint) {
  if (std::exchange(posting_held_, true)) {
    return;
  }
  while (!endpoint.held.empty() && endpoint.usable(false) && post_send(endpoint.held.front())) {
    endpoint.held.pop_front();
  }
  posting_held_ = false;
}

void UcxTransport::recv(PeerId peer, Tag tag, Bytes data, Request& request) {
  if (!begin(peer, tag, true, request)) {
    return;
  }
  // A message that arrived before its receive and is too long completes at once, but without its
  // length.
  const auto early = unexpected_.take_aside(tag);
  const std::size_t length = early ? early->bytes : unexpected_.length_of_next(tag);
  ucp_tag_recv_info_t info{};
  ucp_request_param_t params = parameters(request, data.memory());
  params.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
  params.cb.recv = &UcxTransport::on_received;
  params.recv_info.tag_info = &info;  // written only if the receive completes at once
  const ucs_status_ptr_t answer =
      early
          ? ucp_tag_msg_recv_nbx(worker_.get(), data.data(), data.size(), early->handle, &params)
          : ucp_tag_recv_nbx(worker_.get(), data.data(), data.size(), tag ^ key_, ~Tag{0}, &params);
  if (answer == nullptr) {
    finish(request, Status::kOk, info.length);
  } else if (UCS_PTR_IS_ERR(answer)) {
    finish(request, message_status(UCS_PTR_STATUS(answer)), length);
  }
}

/// Puts the request on its endpoint's list; if the peer is gone, completes it at once and returns
/// false.
bool UcxTransport::begin(PeerId peer, Tag tag, bool is_receive, Request& request) {
  check_process();
  UcxEndpoint& endpoint = endpoints_.at(peer);
  request.peer = peer;
  request.tag = tag;
  request.is_receive = is_receive;
  request.transport = this;
  endpoint.pending.add(request);
  // A receive that does not connect waits for a peer that may still connect; an ended peer will
  // not.
  bool waits = false;
  if (endpoint.state() == UcxEndpoint::State::kUnconnected && !closed_) {
    waits = is_receive && !request.connects;
    if (!waits && !endpoint.has_address()) {
      ask_for_address(peer);
      waits = true;
    }
  }
  const bool urgent = !is_receive && request.urgent;
  if (!closed_ && (waits || endpoint.usable(is_receive) || connect(peer, urgent))) {
    return true;
  }
  // A message that a peer sent before its connection ended is still received. If only part of it
  // has arrived, the receive is abandoned like other receives of an ended endpoint.
  if (!closed_ && is_receive && endpoint.cut_off() && unexpected_.lies_there(tag)) {
    half_arrived_ = true;
    return true;
  }
  finish(request, Status::kPeerFailed, 0);
  return false;
}

void UcxTransport::finish(Request& request, Status status, std::size_t length) {
  UcxEndpoint& endpoint = endpoints_[request.peer];
  endpoint.pending.remove(request);
  endpoint.reached = endpoint.reached || status == Status::kOk;
  some_unmeasured_ = some_unmeasured_ || (connections_ == kAutoConnections && request.is_receive &&
                                          endpoint.unmeasured());
  if (!request.is_receive) {
    endpoint.connections().released(request);
  }
  // Whatever status UCX gives a request on an ended endpoint, the peer is the cause.
  const bool ended =
      endpoint.state() == UcxEndpoint::State::kEnded ||
      (endpoint.state() == UcxEndpoint::State::kUnconnected && !endpoint.unreachable.empty());
  if (ended && (status == Status::kCancelled || status == Status::kFailed)) {
    status = Status::kPeerFailed;
  }
  request.complete(status, length);
  post_held(endpoint);
}

void UcxTransport::on_sent(void* /*ucx_request*/, ucs_status_t status, void* user_data) {
  auto* const request = static_cast<Request*>(user_data);
  static_cast<UcxTransport*>(request->transport)
      ->finish(*request, message_status(status), status == UCS_OK ? request->bytes : 0);
}

void UcxTransport::on_received(void* /*ucx_request*/, ucs_status_t status,
                               const ucp_tag_recv_info_t* info, void* user_data) {
  auto* const request = static_cast<Request*>(user_data);
  const bool arrived = status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED;
  static_cast<UcxTransport*>(request->transport)
      ->finish(*request, message_status(status), arrived ? info->length : 0);
}

void UcxTransport::cancel(Request& request) {
  check_process();
  if (request.pending() && request.is_receive) {
    ucp_request_cancel(worker_.get(), ucx_request(request));
  }
}

}  // namespace gtopk::transport
