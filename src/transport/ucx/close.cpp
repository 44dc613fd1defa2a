// Transport over UCX: shutdown. It flushes, closes, logs unreceived messages, then ends worker and
// context. Every step is bounded and keeps progressing, because a peer's flush may need this
// process's progress.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "src/transport/base/log.hpp"
#include "src/transport/ucx/transport_state.hpp"

namespace gtopk::transport {
namespace {

using std::chrono::steady_clock;

// The minimum time for the steps that need no peer, even if close() is given none.
constexpr Duration kLocalStep = std::chrono::milliseconds(200);

// Sleep between checks because a peer that shares the core has work to do, too.
constexpr Duration kBetweenLooks = std::chrono::microseconds(20);

bool done(ucs_status_ptr_t request) {
  return !UCS_PTR_IS_PTR(request) || ucp_request_check_status(request) != UCS_INPROGRESS;
}

}  // namespace

void UcxTransport::close(Duration at_most) {
  check_process();
  if (std::exchange(closed_, true)) {
    return;
  }
  const TimePoint deadline = steady_clock::now() + at_most;
  flush_all(deadline);
  const TimePoint local_deadline = std::max(deadline, steady_clock::now() + kLocalStep);
  close_all(local_deadline);
  drop_unmatched(local_deadline);
  worker_.close();
  for (UcxEndpoint& endpoint : endpoints_) {
    endpoint.held.clear();
    while (Request* const request = endpoint.pending.first()) {
      finish(*request, Status::kPeerFailed, 0);
    }
  }
  closing_.clear();
  unexpected_.forget();
  context_.close();
}

/// Orders endpoints starting from this rank, so that not all ranks close the same peer's first.
std::vector<UcxEndpoint*> UcxTransport::in_closing_order() {
  std::vector<UcxEndpoint*> order;
  for (UcxEndpoint& endpoint : endpoints_) {
    if (endpoint.state() == UcxEndpoint::State::kConnected) {
      order.push_back(&endpoint);
    }
  }
  std::sort(order.begin(), order.end(), [this](const UcxEndpoint* a, const UcxEndpoint* b) {
    return a->info().identity - self_.identity < b->info().identity - self_.identity;
  });
  return order;
}

void UcxTransport::flush_all(TimePoint deadline) {
  const bool hurried = deadline <= steady_clock::now();
  std::vector<ucs_status_ptr_t> flushes;
  for (UcxEndpoint* const endpoint : in_closing_order()) {
    endpoint->departure_expected = true;
    if (!endpoint->broke()) {
      endpoint->begin_flush(flushes);
    }
  }
  while (!std::all_of(flushes.begin(), flushes.end(), done) && steady_clock::now() < deadline) {
    if (!progress()) {
      worker_.rest(kBetweenLooks);
    }
  }
  const auto left = std::count_if(flushes.begin(), flushes.end(), [](auto f) { return !done(f); });
  if (left > 0 && !hurried) {
    log().warn("{} of {} connections still had messages in flight when the time to close ran out",
               left, flushes.size());
  }
  // UCX frees an unfinished flush when the endpoint is closed by force, which completes it.
  std::for_each(flushes.begin(), flushes.end(), [](auto flush) { ucp_request_free(flush); });
}

void UcxTransport::close_all(TimePoint deadline) {
  for (UcxEndpoint* const endpoint : in_closing_order()) {
    end(*endpoint);
  }
  for (UcxEndpoint& endpoint : endpoints_) {
    // This endpoint was abandoned in the middle of a message, and left open until now.
    endpoint.begin_close(closing_);
  }
  while ((!closing_.empty() || half_arrived_) && steady_clock::now() < deadline) {
    if (!progress()) {
      worker_.rest(kBetweenLooks);
    }
  }
  while (worker_.progress() && steady_clock::now() < deadline) {  // remaining work of endpoints
  }
}

void UcxTransport::drop_unmatched(TimePoint deadline) {
  constexpr int kNamed = 10;
  int count = 0;
  unexpected_.drop_all([&](Tag tag, std::size_t bytes) {
    if (kind_of(tag) == TagKind::kControl) {
      // This may be the goodbye of a peer that leaves at the same time, or with which this process
      // never communicated; it can affect nothing here any more.
      const auto sender = std::ranges::find_if(
          endpoints_, [&](const auto& each) { return control_tag(each.info().identity) == tag; });
      log().debug("nobody received a notice from {}, which is harmless when leaving",
                  sender == endpoints_.end()
                      ? std::string("an unknown process")
                      : fmt::format("pid {} on {}", sender->info().process, sender->info().host));
      return;
    }
    if (++count <= kNamed) {
      log().warn("nobody received {}, {} bytes", transport::describe(tag), bytes);
    }
  });
  if (count > kNamed) {
    log().warn("nobody received {} more messages", count - kNamed);
  }
  while (unexpected_.dropping() && steady_clock::now() < deadline) {
    if (!progress()) {
      worker_.rest(kBetweenLooks);
    }
  }
}

}  // namespace gtopk::transport
