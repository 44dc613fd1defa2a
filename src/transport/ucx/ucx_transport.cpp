// Transport over UCX: the parts of the transport, and the ends of peers. Messages are in
// messages.cpp, peers' addresses in peers.cpp, progress and sleep in waiting.cpp, shutdown in
// close.cpp.
#include "src/transport/ucx/ucx_transport.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <random>
#include <utility>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/ucx/host_identity.hpp"
#include "src/transport/ucx/status.hpp"
#include "src/transport/ucx/transport_state.hpp"

namespace gtopk::transport {
namespace {

// How long a receive may stay half-arrived after its endpoint's end. UCX neither completes nor
// cancels a receive matched to a message of several fragments whose sender has died
// (openucx/ucx#10874).
constexpr Duration kAbandonAfter = std::chrono::seconds(1);

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// Returns a random number that is never 0 and never the same twice.
std::uint64_t random_number() {
  std::random_device random;
  std::uint64_t number = 0;
  while (number == 0) {
    number = (std::uint64_t{random()} << 32U) | random();
  }
  return number;
}

}  // namespace

UcxTransport::UcxTransport(const UcxOptions& options)
    : config_(options.settings),
      connections_(options.connections != 0 ? options.connections : connections_of_environment()),
      device_pointers_(device_pointers_of_environment()),
      context_(config_),
      worker_(context_, config_),
      self_{.identity = random_number(),
            .host = host_name(),
            .process = getpid(),
            .place = host_identity_of_this_process()},
      key_(random_number()),
      address_(encode(UcxAddress{.process = self_,
                                 .key = 0,
                                 .tcp = worker_.tcp_addresses(),
                                 .worker = worker_.address()})),
      unexpected_(worker_, key_),
      neighbours_(self_) {
  if (device_pointers_ == DevicePointers::kAlways && !context_.knows_cuda()) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("GTOPK_DEVICE_POINTERS is 1, but UCX has found no CUDA here ({}, "
                            "UCX_TLS={}): add cuda_copy to GTOPK_UCX_TLS (this needs a UCX with "
                            "cuda_copy, and a GPU), or unset GTOPK_DEVICE_POINTERS",
                            context_.library(), config_.value("TLS")));
  }
}

UcxTransport::~UcxTransport() {
  if (!process_.made_here()) {
    // In a forked copy, UCX would tear down what belongs to its parent, including shared memory.
    worker_.abandon();
    context_.abandon();
    return;
  }
  close(Duration::zero());
}

std::string UcxTransport::describe() const {
  std::string line = context_.library();
  for (const Setting& setting : config_.settings()) {
    line += fmt::format(", {}={} ({})", setting.key, setting.value, setting.source);
  }
  if (connections_ > 1) {
    line += fmt::format(", {} connections to each peer by TCP", connections_);
  }
  const auto takes = [this](bool same_host) {
    return takes_devices(device_pointers_, context_.knows_cuda(), config_.value("TLS"), same_host);
  };
  if (takes(true) || takes(false)) {
    line +=
        fmt::format(", device memory goes to UCX: {}", !takes(true)   ? "to ranks of other hosts"
                                                       : takes(false) ? "to all ranks"
                                                                      : "to ranks of this host");
  }
  return line;
}

const PeerInfo& UcxTransport::peer(PeerId peer) const { return endpoints_.at(peer).info(); }

bool UcxTransport::process_ended(PeerId peer) const {
  const UcxEndpoint& endpoint = endpoints_.at(peer);
  return endpoint.process_ended() || neighbours_.has_ended(endpoint.info());
}

bool UcxTransport::takes(Memory::Kind kind, PeerId peer) const {
  if (kind == Memory::Kind::kHost) {
    return true;
  }
  const HostIdentity& there = endpoints_.at(peer).info().place;
  const bool same_host = !there.boot.empty() && there.boot == self_.place.boot;
  return takes_devices(device_pointers_, context_.knows_cuda(), config_.value("TLS"), same_host);
}

/// Connects to a peer. Returns false if the peer is gone, or this process has no descriptors for a
/// connection. A notice may use the reserve.
bool UcxTransport::connect(PeerId peer, bool for_notice) {
  UcxEndpoint& endpoint = endpoints_[peer];
  if (endpoint.state() != UcxEndpoint::State::kUnconnected || endpoint.broke() ||
      !has_descriptors(endpoint, for_notice)) {
    return false;
  }
  if (!neighbours_.watch(peer, endpoint.info())) {
    endpoint.process_has_ended();
    return false;
  }
  const bool begun =
      endpoint.connect(worker_, self_.place) && endpoint.widen(worker_, connections_);
  if (!endpoint.shares_memory()) {
    neighbours_.forget(peer);
  }
  some_do_not_wake_ = some_do_not_wake_ || !endpoint.wakes();
  worker_.expect_connection();
  return begun;
}

bool UcxTransport::connected(PeerId peer) const {
  const UcxEndpoint& endpoint = endpoints_.at(peer);
  const bool soon = endpoint.state() == UcxEndpoint::State::kUnconnected && endpoint.asked;
  return soon || (endpoint.state() == UcxEndpoint::State::kConnected && !endpoint.broke());
}

std::uint32_t UcxTransport::connections(PeerId peer) const {
  const std::uint32_t open = endpoints_.at(peer).connections().count();
  return open == 0 ? std::max(connections_, 1U) : open;
}

void UcxTransport::give_up(PeerId peer) {
  check_process();
  UcxEndpoint& endpoint = endpoints_.at(peer);
  if (endpoint.state() != UcxEndpoint::State::kEnded) {
    endpoint.lost = true;
    end(endpoint);
  }
}

void UcxTransport::expect_departure(PeerId peer) {
  UcxEndpoint& endpoint = endpoints_.at(peer);
  endpoint.departure_expected = true;
  endpoint.lost = false;
}

bool UcxTransport::spent() const {
  return closed_ || deaf_ || worker_.doubts_queue() ||
         std::any_of(endpoints_.begin(), endpoints_.end(), [this](const UcxEndpoint& endpoint) {
           const bool may_be_killed = endpoint.state() == UcxEndpoint::State::kConnected &&
                                      endpoint.shares_memory() && !endpoint.departure_expected;
           return endpoint.lost || (may_be_killed && neighbours_.has_ended(endpoint.info()));
         });
}

std::vector<PeerFailure> UcxTransport::take_failures() { return std::exchange(failures_, {}); }

void UcxTransport::act_on_failures() {
  attention_ = false;
  for (PeerId peer = 0; peer < endpoints_.size(); ++peer) {
    UcxEndpoint& endpoint = endpoints_[peer];
    if (!endpoint.broke()) {
      some_half_broken_ = some_half_broken_ || endpoint.half_broken();
      continue;
    }
    if (endpoint.process_ended() && endpoint.shares_memory()) {
      killed_neighbour_ = peer;
      worker_.doubt_queue();
    }
    if (!endpoint.departure_expected) {
      endpoint.lost = !endpoint.process_ended();
      failures_.push_back(failure_of(peer));
      log().info("the endpoint to {} pid {} broke: {}", endpoint.info().host,
                 endpoint.info().process, endpoint.failure_reason());
    }
    end(endpoint);
  }
}

void UcxTransport::end(UcxEndpoint& endpoint) {
  endpoint.mark_ended();
  fail_held(endpoint);
  // UCX leaves a dead peer's receives posted forever. Each cancel completes at most its own
  // request, at once; requests still pending afterwards have begun to arrive.
  for (Request* request = endpoint.pending.first(); request != nullptr;) {
    Request* const next = request->next;
    if (request->is_receive) {
      ucp_request_cancel(worker_.get(), ucx_request(*request));
    }
    request = next;
  }
  // A stopped peer may continue later, and UCX would then write the rest of its message where the
  // buffer was. Such a receive completes only when the worker ends; see abandon_half_arrived.
  if (endpoint.cut_off() || closed_ || !endpoint.pending.any(true)) {
    neighbours_.forget(known_.at(endpoint.info().identity));
    endpoint.begin_close(closing_);
  }
  half_arrived_ = half_arrived_ || !endpoint.pending.empty();
}

/// Handles things that complete on their own: closing endpoints, dropped messages, requests of
/// ended endpoints. Returns true if any of these has completed.
bool UcxTransport::tidy() {
  std::erase_if(closing_, [](ucs_status_ptr_t request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) {
      return false;
    }
    ucp_request_free(request);
    return true;
  });
  unexpected_.tidy();
  return half_arrived_ && closing_.empty() && abandon_half_arrived();
}

/// Completes half-arrived requests of ended endpoints. Returns true if it has completed any.
bool UcxTransport::abandon_half_arrived() {
  bool any = false;
  const TimePoint now = std::chrono::steady_clock::now();
  half_arrived_ = false;
  for (UcxEndpoint& endpoint : endpoints_) {
    if (endpoint.state() != UcxEndpoint::State::kEnded || endpoint.pending.empty()) {
      continue;
    }
    if (now - endpoint.ended_at < kAbandonAfter) {
      half_arrived_ = true;
      continue;
    }
    if (!endpoint.cut_off()) {
      // If a stopped peer continued later, UCX would write the rest of its message into memory that
      // no longer belongs to the transport; only the end of the worker prevents that.
      if (!closed_) {
        fail_everything(endpoint);
        return true;
      }
      continue;
    }
    while (Request* const request = endpoint.pending.first()) {
      log().info("UCX never completed {} with {} pid {}", transport::describe(request->tag),
                 endpoint.info().host, endpoint.info().process);
      finish(*request, Status::kPeerFailed, 0);
      any = true;
    }
  }
  return any;
}

void UcxTransport::fail_everything(const UcxEndpoint& cause) {
  log().warn("UCX is shut down: this process gave up on {} pid {} in the middle of a message",
             cause.info().host, cause.info().process);
  for (PeerId peer = 0; peer < endpoints_.size(); ++peer) {
    UcxEndpoint& endpoint = endpoints_[peer];
    if (endpoint.state() == UcxEndpoint::State::kConnected && !endpoint.departure_expected) {
      failures_.push_back({.peer = peer,
                           .reason = "UCX was shut down here, as this process gave up on another "
                                     "peer in the middle of a message"});
    }
  }
  close(Duration::zero());
}

bool UcxTransport::lies_there(Tag tag) {
  check_process();
  return !closed_ && unexpected_.lies_there(tag);
}

std::size_t UcxTransport::discard(Tag tag, Tag mask) {
  check_process();
  return closed_ ? 0 : unexpected_.discard(tag, mask);
}

std::size_t UcxTransport::sift(const std::function<bool(Tag)>& ours) {
  check_process();
  return closed_ ? 0 : unexpected_.sift(ours);
}

void UcxTransport::check_process() const {
  if (!process_.made_here()) {
    throw Error(
        ErrorKind::kTransport,
        fmt::format(
            "process {} was forked from process {} after gtopk had started UCX there, and cannot "
            "use its connections: fork before init_process_group, or start workers with spawn",
            getpid(), self_.process));
  }
}

std::string lanes(const Transport& transport, PeerId peer) {
  return dynamic_cast<const UcxTransport&>(transport).lanes(peer);
}

std::unique_ptr<Transport> make_ucx_transport(const UcxOptions& options) {
  return std::make_unique<UcxTransport>(options);
}

}  // namespace gtopk::transport
