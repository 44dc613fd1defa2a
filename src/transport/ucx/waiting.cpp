// Transport over UCX: progress, and sleep when there is none. A sleep is ended by UCX, by wake(),
// by the end of a neighbour's process or, for peers that can do none of these, by a short timeout.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/transport/ucx/transport_state.hpp"

namespace gtopk::transport {
namespace {

// While waiting for a peer that cannot end a nap, naps take this share of the time since anything
// moved, so that they prolong the wait by at most that share.
constexpr int kNapShare = 8;
constexpr Duration kShortestNap = std::chrono::microseconds(50);
constexpr Duration kLongestNap = std::chrono::milliseconds(1);

// A living sender may be interrupted in the middle of a message, but hardly for this long.
constexpr Duration kHiddenAfter = std::chrono::seconds(1);

// A process too busy to sleep checks its neighbours once every this many turns.
constexpr unsigned kTurnsPerLook = 4096;

}  // namespace

bool UcxTransport::progress() {
  if (attention_) {
    // The caller has seen what arrived before these ends, such as a goodbye.
    act_on_failures();
  }
  bool moved = worker_.progress();
  moved = std::exchange(moved_in_wait_, false) || moved;
  napping_ = napping_ && !moved;
  if (!moved && !ended_neighbours_.empty()) {
    // These peers ended before this call, which has found nothing more from them, and the caller
    // has seen everything that arrived earlier, such as a goodbye.
    for (const PeerId peer : std::exchange(ended_neighbours_, {})) {
      endpoints_[peer].process_has_ended();
    }
  }
  if (++turns_ % kTurnsPerLook == 0) {
    look_at_neighbours();
  }
  if (some_half_broken_) {
    look_at_half_broken();
  }
  if (some_unmeasured_) {
    measure_round_trips();
  }
  moved = moved || attention_;
  if (!closing_.empty() || unexpected_.dropping() || half_arrived_) {
    moved = tidy() || moved;
  }
  return moved;
}

void UcxTransport::wait(Duration at_most) {
  check_process();
  if (at_most <= Duration::zero() || attention_) {
    return;
  }
  moved_in_wait_ = progress();
  if (moved_in_wait_) {
    return;
  }
  if (worker_.sleep(nap(at_most), neighbours_.descriptor())) {
    look_at_neighbours();
  }
  check_listeners();
  check_queue();
}

/// Checks UCX's queue in shared memory, which ends at a message whose sender was killed while
/// writing it.
void UcxTransport::check_queue() {
  if (deaf_ || !worker_.doubts_queue() || worker_.stuck_for() < kHiddenAfter) {
    return;
  }
  const auto self = known_.find(self_.identity);
  if (self == known_.end() ||
      std::any_of(endpoints_.begin(), endpoints_.end(),
                  [](const UcxEndpoint& endpoint) { return endpoint.pending.any(false); })) {
    return;
  }
  deaf_ = true;
  const PeerInfo& killed = endpoints_[killed_neighbour_].info();
  failures_.push_back(
      {.peer = self->second,
       .reason = fmt::format("{} pid {} was killed while it wrote to the shared memory in which "
                             "this process receives, and nothing arrives there any more. Groups "
                             "made from now on are not affected",
                             killed.host, killed.process)});
}

/// Returns how long to sleep: briefly if this process waits for a peer that cannot wake it.
Duration UcxTransport::nap(Duration at_most) {
  if (!some_do_not_wake_ ||
      std::none_of(endpoints_.begin(), endpoints_.end(), [](const UcxEndpoint& endpoint) {
        return !endpoint.wakes() && endpoint.pending.any_awaited();
      })) {
    napping_ = false;
    return at_most;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  if (!napping_) {
    napping_ = true;
    napping_since_ = now;
  }
  return std::min(at_most,
                  std::clamp((now - napping_since_) / kNapShare, kShortestNap, kLongestNap));
}

void UcxTransport::look_at_half_broken() {
  some_half_broken_ = false;
  for (const UcxEndpoint& endpoint : endpoints_) {
    some_half_broken_ = some_half_broken_ || endpoint.half_broken();
    attention_ = attention_ || endpoint.broke();
  }
}

void UcxTransport::look_at_neighbours() {
  const std::vector<PeerId> ended = neighbours_.take_ended();
  ended_neighbours_.insert(ended_neighbours_.end(), ended.begin(), ended.end());
}

void UcxTransport::rest(Duration at_most) {
  check_process();
  // Shared memory has little capacity, and its sender stalls as soon as it is full.
  const bool streams = std::none_of(endpoints_.begin(), endpoints_.end(),
                                    [](const UcxEndpoint& e) { return e.shares_memory(); });
  if (streams && !attention_) {
    worker_.rest(at_most);
  }
}

void UcxTransport::wake() { worker_.wake(); }

}  // namespace gtopk::transport
