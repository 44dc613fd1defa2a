#include "src/transport/ucx/connections.hpp"

#include <algorithm>
#include <chrono>

namespace gtopk::transport {

std::uint32_t connections_for(Duration round_trip) {
  // docs/hosts.md has the measurements: 16 connections fill a link of 50 ms. More connections cost
  // memory and gain little.
  constexpr Duration kOfOne = std::chrono::milliseconds(3);
  constexpr Duration::rep kMostByItself = 16;
  return static_cast<std::uint32_t>(
      std::clamp<Duration::rep>(round_trip / kOfOne, 1, kMostByItself));
}

ucs_status_t Connections::open(const UcxWorker& worker, std::string_view address,
                               ucp_err_handler_cb_t on_error, void* argument) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = argument;
  ucp_ep_h handle = nullptr;
  const ucs_status_t status = ucp_ep_create(worker.get(), &params, &handle);
  if (status == UCS_OK) {
    all_.push_back({.handle = handle});
  }
  return status;
}

std::vector<ucp_ep_h> Connections::handles() const {
  std::vector<ucp_ep_h> handles;
  handles.reserve(all_.size());
  for (const Connection& each : all_) {
    handles.push_back(each.handle);
  }
  return handles;
}

ucp_ep_h Connections::choose(Request& send) {
  if (send.connection != kAnyConnection || count() == 1) {
    return all_[send.connection == kAnyConnection ? 0 : send.connection % count()].handle;
  }
  for (std::uint32_t i = 0; i < count(); ++i) {
    const std::uint32_t number = (next_ + i) % count();
    Connection& one = all_[number];
    if (!one.taken) {
      one.taken = true;
      send.taken = number;
      next_ = number + 1;
      return one.handle;
    }
  }
  return nullptr;
}

void Connections::released(const Request& send) {
  if (send.taken < count()) {
    all_[send.taken].taken = false;
  }
}

}  // namespace gtopk::transport
