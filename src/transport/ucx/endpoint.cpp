#include "src/transport/ucx/endpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <set>
#include <string_view>
#include <utility>

#include "src/transport/base/log.hpp"

namespace gtopk::transport {
namespace {

// The time between the ends of the first and the last of several connections to a peer that leaves
// or dies.
constexpr Duration kOthersFollow = std::chrono::seconds(1);

}  // namespace

void PendingRequests::add(Request& request) {
  request.previous = nullptr;
  request.next = first_;
  if (first_ != nullptr) {
    first_->previous = &request;
  }
  first_ = &request;
}

void PendingRequests::remove(Request& request) {
  if (request.previous != nullptr) {
    request.previous->next = request.next;
  } else {
    first_ = request.next;
  }
  if (request.next != nullptr) {
    request.next->previous = request.previous;
  }
  request.previous = nullptr;
  request.next = nullptr;
}

bool PendingRequests::any(bool receives) const {
  for (const Request* request = first_; request != nullptr; request = request->next) {
    if (request->is_receive == receives) {
      return true;
    }
  }
  return false;
}

bool PendingRequests::any_awaited() const {
  for (const Request* request = first_; request != nullptr; request = request->next) {
    if (!request->is_receive || request->connects) {
      return true;
    }
  }
  return false;
}

bool UcxEndpoint::connect(const UcxWorker& worker, const HostIdentity& here) {
  if (!add_connection(worker)) {
    return false;
  }
  state_ = State::kConnected;
  look_at_lanes(here);
  log().info("connects to {} pid {} over {}{}", info().host, info().process, lanes_,
             wakes_ ? "" : "; in another network namespace: no wake-ups");
  return true;
}

bool UcxEndpoint::widen(const UcxWorker& worker, std::uint32_t connections) {
  if (!streams_ || connections_.count() >= connections) {
    return true;
  }
  while (connections_.count() < connections) {
    if (!add_connection(worker)) {
      return false;
    }
  }
  log().info("connects to {} pid {} {} times", info().host, info().process, connections);
  return true;
}

bool UcxEndpoint::add_connection(const UcxWorker& worker) {
  const ucs_status_t status =
      connections_.open(worker, address_.worker, &UcxEndpoint::on_error, this);
  if (status != UCS_OK) {
    failure_ = status;
    failed_ = connections_.count();
    log().error("cannot create an endpoint to {} pid {}: {}", info().host, info().process,
                failure_reason());
    attention_ = true;
    return false;
  }
  return true;
}

void UcxEndpoint::look_at_lanes(const HostIdentity& here) {
  std::array<ucp_transport_entry_t, 16> lanes{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = lanes.data();
  attributes.transports.num_entries = lanes.size();
  attributes.transports.entry_size = sizeof(ucp_transport_entry_t);
  std::set<std::string> names;
  if (ucp_ep_query(connections_.handles().front(), &attributes) == UCS_OK) {
    for (unsigned i = 0; i < attributes.transports.num_entries; ++i) {
      const std::string_view name = lanes[i].transport_name;
      streams_ = streams_ || name == "tcp";
      shares_memory_ = shares_memory_ || name == "posix" || name == "sysv" || name == "xpmem";
      names.insert(fmt::format("{}/{}", name, lanes[i].device_name));
    }
  }
  lanes_ = fmt::format("{}", fmt::join(names, ", "));
  const HostIdentity& there = info().place;
  wakes_ = !shares_memory_ || here.network_namespace == there.network_namespace ||
           here.network_namespace == 0 || there.network_namespace == 0;
  streams_ = streams_ && !shares_memory_;
}

bool UcxEndpoint::broke() const {
  if (state_ == State::kEnded || failure_ == UCS_OK) {
    return false;
  }
  return process_ended_ || all_failed() ||
         std::chrono::steady_clock::now() - failed_at_ >= kOthersFollow;
}

std::string UcxEndpoint::failure_reason() const {
  if (process_ended_) {
    return "its process has ended";
  }
  if (failure_ == UCS_ERR_ENDPOINT_TIMEOUT) {
    return fmt::format(
        "no answer from it over {} ({}). Does that interface lead to its host? Set "
        "UCX_NET_DEVICES to the one that does",
        lanes_, ucs_status_string(failure_));
  }
  if (failure_ == UCS_ERR_UNREACHABLE) {
    return fmt::format(
        "UCX finds no route to it ({}). Do the UCX_TLS and UCX_NET_DEVICES of both ranks have "
        "entries in common?",
        ucs_status_string(failure_));
  }
  return ucs_status_string(failure_);
}

void UcxEndpoint::process_has_ended() {
  process_ended_ = true;
  if (failure_ == UCS_OK) {
    failure_ = UCS_ERR_CONNECTION_RESET;
  }
  attention_ = true;
}

/// Runs inside UCX's progress, so it must neither close nor cancel anything.
void UcxEndpoint::on_error(void* endpoint, ucp_ep_h /*handle*/, ucs_status_t status) {
  auto* const self = static_cast<UcxEndpoint*>(endpoint);
  if (self->failed_++ == 0) {
    self->failed_at_ = std::chrono::steady_clock::now();
  }
  self->failure_ = status;
  self->attention_ = true;
}

void UcxEndpoint::begin_flush(std::vector<ucs_status_ptr_t>& flushes) {
  const ucp_request_param_t params{};
  for (const ucp_ep_h handle : connections_.handles()) {
    const ucs_status_ptr_t flush = ucp_ep_flush_nbx(handle, &params);
    if (UCS_PTR_IS_PTR(flush)) {
      flushes.push_back(flush);
    }
  }
}

void UcxEndpoint::mark_ended() {
  state_ = State::kEnded;
  ended_at = std::chrono::steady_clock::now();
}

void UcxEndpoint::begin_close(std::vector<ucs_status_ptr_t>& closing) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  for (const ucp_ep_h handle : std::exchange(connections_, {}).handles()) {
    const ucs_status_ptr_t close = ucp_ep_close_nbx(handle, &params);
    if (UCS_PTR_IS_PTR(close)) {
      closing.push_back(close);
    }
  }
}

}  // namespace gtopk::transport
